#pragma once

#include <ATen/core/Tensor.h>
#include <torch/optim/optimizer.h>

#include <cstdint>
#include <utility>
#include <vector>

namespace linkboy {

/// Float scalars on the parameters' device, or undefined.
struct GradientScaling {
  /// The gradients are divided by it.
  at::Tensor grad_scale{};
  /// Where it is 1 when the device comes to it, nothing but the counts of updates changes
  /// (`undo_step`).
  at::Tensor found_inf{};
};

/// The gradients that `fused_step` has taken itself.
enum class FusedGradients { none, some, all };

/// Makes one update of a LibTorch optimizer by few calls per param group, on its own options and
/// state. SGD, Adam, AdamW and Adagrad go through fused kernels with the numbers of Python's
/// `fused=True`, RMSprop through multi-tensor operations with those of `foreach=True`. What these
/// do not take (a sparse gradient, complex numbers, a gradient of another dtype or memory order, a
/// parameter with gaps in memory) is updated by the optimizer's own `step`, for that parameter
/// alone. The state follows a parameter whose device or memory format has changed.
///
/// @return `none`, with nothing changed, if the optimizer is of another class (a subclass too);
///         `some` if a gradient was left to the optimizer's own `step`.
FusedGradients fused_step(torch::optim::Optimizer& optimizer, const GradientScaling& scaling = {});

/// Whether `fused_step` leaves a gradient that is there to the optimizer's own `step`. False for an
/// optimizer of another class, which it leaves alone.
bool has_gradient_without_kernel(const torch::optim::Optimizer& optimizer);

/// Whether Python's class of this optimizer makes the updates of `fused_step` on the parameters of
/// `group` if it is told `fused=True`: it has the kernel, and takes these parameters.
bool is_fused_in_python(const torch::optim::Optimizer& optimizer,
                        const torch::optim::OptimizerParamGroup& group);

/// Moves the state of an optimizer of these classes to the devices and into the memory formats of
/// its parameters, as `fused_step` would before the update. Other classes are left alone.
void move_state_to_parameters(const torch::optim::Optimizer& optimizer);

/// Whether `fused_step` takes a `grad_scale`: there is a kernel for each gradient, on one device.
bool supports_grad_scale(const torch::optim::Optimizer& optimizer);

/// Whether `fused_step` takes a `found_inf`: as `supports_grad_scale`, and this is not the first
/// update of any parameter.
bool takes_found_inf(const torch::optim::Optimizer& optimizer);

/// Counts of updates, by parameter.
using UpdateCounts = std::vector<std::pair<void*, int64_t>>;

/// The step counts of the parameters that have gradients; empty if the optimizer does not count.
UpdateCounts counts_of_updates(const torch::optim::Optimizer& optimizer);

/// After a `fused_step` whose `found_inf` was 1, with the counts that it left: it has not happened.
/// Counts that have changed since then belong to another state, and stay.
void undo_step(const torch::optim::Optimizer& optimizer, const UpdateCounts& counts);

}  // namespace linkboy
