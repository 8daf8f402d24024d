#pragma once

#include <ATen/core/Tensor.h>
#include <torch/optim/optimizer.h>

namespace linkboy {

/// Makes one update of a LibTorch optimizer by few calls per param group, on its own options and
/// state. SGD, Adam, AdamW and Adagrad go through fused kernels with the numbers of Python's
/// `fused=True`, RMSprop through multi-tensor operations with those of `foreach=True`. What these
/// do not take (a sparse gradient, complex numbers, a gradient of another dtype) is updated by the
/// optimizer's own `step`, for that parameter alone.
///
/// @param found_inf  Undefined, or a float scalar on the parameters' device: where it is 1 when the
///                   device comes to it, nothing but the counts of updates changes
///                   (`take_back_step`). Only after `can_step_unless`.
/// @return False, with nothing changed, if the optimizer is of another class (a subclass too).
bool fused_step(torch::optim::Optimizer& optimizer, const at::Tensor& found_inf = {});

/// Whether `fused_step` takes a `found_inf`: there are kernels for it, for each gradient, and this
/// is not the first update of any parameter.
bool can_step_unless(const torch::optim::Optimizer& optimizer);

/// After a `fused_step` whose `found_inf` was 1: it has not happened.
void take_back_step(torch::optim::Optimizer& optimizer);

}  // namespace linkboy
