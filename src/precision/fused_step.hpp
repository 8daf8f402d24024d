#pragma once

#include <torch/optim/optimizer.h>

namespace linkboy {

/// Makes one update of a LibTorch SGD, Adam or AdamW by one fused call per param group, on the
/// optimizer's own options and state; the numbers are those of Python's `fused=True`.
///
/// @return False, with nothing changed, if the optimizer is another class (a subclass too), or a
///         parameter or gradient is of a kind that the fused kernels do not take (sparse, complex).
bool fused_step(torch::optim::Optimizer& optimizer);

}  // namespace linkboy
