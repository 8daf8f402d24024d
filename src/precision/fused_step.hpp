// Updates with LibTorch's fused kernels, and the conditions under which they can be used.

#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/FunctionRef.h>
#include <torch/optim/optimizer.h>

#include <cstdint>
#include <utility>
#include <vector>

namespace linkboy {

/// Scaling of the gradients. The members are float scalars on the parameters' device, or undefined.
struct GradientScaling {
  /// The gradients are divided by this value.
  at::Tensor grad_scale{};
  /// If it is 1 when the device reaches the step, only the update counts change; `undo_step`
  /// corrects them.
  at::Tensor found_inf{};
};

/// Which gradients `fused_step` handled itself.
enum class FusedGradients { none, some, all };

/// Performs one update of a LibTorch optimizer with few calls per param group, using the
/// optimizer's options and state. SGD, Adam, AdamW and Adagrad use fused kernels, with the same
/// results as Python's `fused=True`; RMSprop uses multi-tensor operations, with the same results as
/// `foreach=True`. These do not accept a gradient that is sparse or complex or differs from its
/// parameter in dtype or memory order, nor a parameter with gaps in memory. The optimizer's own
/// `step` updates such a parameter. If the device or the memory format of a parameter has changed,
/// its state is converted, too.
///
/// @return `none`, with nothing changed, if the optimizer is of another class or a subclass; `some`
///         if the optimizer's own `step` handled a gradient.
FusedGradients fused_step(torch::optim::Optimizer& optimizer, const GradientScaling& scaling = {});

/// Whether `fused_step` leaves an existing gradient to the optimizer's own `step`. False for an
/// optimizer of another class, which `fused_step` does not change.
bool has_gradient_without_kernel(const torch::optim::Optimizer& optimizer);

/// Whether Python's class of this optimizer, with `fused=True`, makes the same updates as
/// `fused_step` on the parameters of `group`: it must have the kernel and accept these parameters.
bool is_fused_in_python(const torch::optim::Optimizer& optimizer,
                        const torch::optim::OptimizerParamGroup& group);

/// Moves the state of an optimizer of these classes, or of LBFGS, to the devices and memory formats
/// of its parameters, as `fused_step` does before the update. Does nothing for other classes.
void move_state_to_parameters(const torch::optim::Optimizer& optimizer);

/// Calls `visit` with each tensor of the state of an optimizer of these classes that has an element
/// for each element of its parameter, or may have one. Does nothing for other classes.
void for_each_state_tensor(
    const torch::optim::Optimizer& optimizer,
    c10::function_ref<void(const at::Tensor& parameter, at::Tensor& part)> visit);

/// Whether `fused_step` accepts a `grad_scale`. There must be a kernel for each gradient, and all
/// gradients must be on one device.
bool supports_grad_scale(const torch::optim::Optimizer& optimizer);

/// Whether `fused_step` accepts a `found_inf`. It must support a `grad_scale`, and each parameter
/// must have been updated before (except by an SGD without momentum).
bool takes_found_inf(const torch::optim::Optimizer& optimizer);

/// Update counts by parameter.
using UpdateCounts = std::vector<std::pair<void*, int64_t>>;

/// Returns the step counts of the parameters that have gradients; empty if the optimizer does not
/// count its updates.
UpdateCounts counts_of_updates(const torch::optim::Optimizer& optimizer);

/// Removes a `fused_step` whose `found_inf` was 1 from the update counts. `counts` are the counts
/// after that step. Counts that have changed since then belong to another state and are not
/// changed.
void undo_step(const torch::optim::Optimizer& optimizer, const UpdateCounts& counts);

}  // namespace linkboy
