#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <unordered_map>
#include <utility>
#include <vector>

#include "linkboy/checkpoint/state_dict.hpp"
#include "linkboy/export.hpp"
#include "linkboy/extend/async_scalar.hpp"
#include "linkboy/util/text_options.hpp"

namespace torch::optim {
class Optimizer;
}

namespace linkboy {

class ProcessGroup;

/// The options of Python's `torch.amp.GradScaler`.
struct GradScalerOptions {
  /// The scale of the first update. Must be positive and finite.
  double init_scale = 65536.0;
  /// Multiplies the scale after `growth_interval` consecutive updates without an infinite or NaN
  /// gradient. Must be greater than 1.
  double growth_factor = 2.0;
  /// Multiplies the scale after an update with an infinite or NaN gradient. Must be between 0 and
  /// 1, exclusive.
  double backoff_factor = 0.5;
  /// Number of consecutive updates without an infinite or NaN gradient after which the scale grows.
  /// Must be at least 1.
  int64_t growth_interval = 2000;

  LINKBOY_FIELDS(init_scale, growth_factor, backoff_factor, growth_interval);
};

/// Whether a step was skipped because a gradient was infinite or NaN. On a CUDA device, the outcome
/// is known only when the device has reached the step.
class LINKBOY_API StepOutcome {
 public:
  /// Constructs a outcome that no step was skipped.
  StepOutcome() = default;
  /// Constructs a outcome that is already known.
  explicit StepOutcome(bool was_skipped) : was_skipped_(was_skipped) {}

  /// @param found_inf  Scalars on any device. The step is skipped if one of them is not 0.
  explicit StepOutcome(const std::vector<at::Tensor>& found_inf);

  /// Whether `was_skipped` returns without waiting for a device.
  bool is_known() const { return pending_.empty(); }
  /// Returns the outcome. Waits for it, but not for work that was queued after it.
  bool was_skipped() const;
  /// Combines this outcome with another one: afterwards, `was_skipped` returns true if either step
  /// was skipped.
  void add(const StepOutcome& other);

 private:
  bool was_skipped_ = false;
  std::vector<AsyncScalar> pending_{};
};

/// Multiplies losses by a scale so that small gradients do not underflow in half precision, divides
/// the gradients by it, and skips an update if its gradients overflowed. The scales of a run are
/// bit-identical to those of Python's `torch.amp.GradScaler`. Accelerator uses one for
/// Precision::fp16. To use one yourself:
///
///     scaler.scale(loss).backward();
///     scaler.unscale(optimizer);            // only to read or clip the gradients
///     if (scaler.step(optimizer)) scheduler.step();
///     scaler.update();
///
/// Works on any device. Not thread-safe.
class LINKBOY_API GradScaler {
 public:
  /// @throws OptionError if an option is out of range.
  explicit GradScaler(GradScalerOptions options = {});

  /// Returns `tensor` times the scale, on the device of `tensor`.
  [[nodiscard]] at::Tensor scale(const at::Tensor& tensor);

  /// Divides the gradients of `optimizer`'s parameters by the scale. Call it at most once per
  /// update.
  /// @throws Error if `unscale` or `step` was already called in this update, if nothing was scaled,
  ///         or if a gradient has half precision (the parameters must be float).
  void unscale(torch::optim::Optimizer& optimizer);

  /// Performs the update unless a gradient is infinite or NaN, with fused kernels if possible.
  /// Unscales the gradients first if `unscale` was not called. On CUDA, queues the update before it
  /// waits for the outcome, so that the two overlap.
  /// @return Whether the update was performed.
  /// @throws Error if it was already called in this update, or if nothing was scaled.
  bool step(torch::optim::Optimizer& optimizer);

  /// Works like `step`, but does not wait for the outcome on CUDA if each parameter has been
  /// updated before. Until `settle` or the optimizer's next step, the optimizer's update counts
  /// include a skipped step.
  StepOutcome queue_step(torch::optim::Optimizer& optimizer);

  /// Waits for the outcome of the last `queue_step` of `optimizer`. If the step was skipped,
  /// removes it from the update counts.
  void settle(const torch::optim::Optimizer& optimizer);

  /// Whether `unscale` was called for `optimizer` since the last `update`.
  bool has_unscaled(const torch::optim::Optimizer& optimizer) const;

  /// Whether the gradients of any optimizer are unscaled but its `step` has not been called yet.
  /// Gradients that were cleared after `unscale` do not count.
  bool awaits_step() const;

  /// Declares that the optimizers whose gradients are unscaled will not be stepped: `awaits_step`
  /// no longer counts them.
  void skip_steps();

  /// Shares overflows between ranks that do not average their gradients. Call it after `unscale`.
  /// An infinite or NaN gradient on one rank of `group` then counts on all of them, so that `step`
  /// performs the update on all ranks or on none.
  /// @throws Error if `unscale` was not called for `optimizer`.
  /// @note Collective.
  void share_overflow(const torch::optim::Optimizer& optimizer, const ProcessGroup& group);

  /// Allows another backward pass and `step` for the optimizers that were already stepped in this
  /// update. The scale does not change. Their overflows count at the next `update`.
  void collect_steps();

  /// Adapts the scale. Call it once per update, after the `step` of every optimizer. Does nothing
  /// if there was no `step` or `unscale` since the last call.
  void update();

  /// Ends an update that will not be made: forgets which gradients are unscaled and the overflows
  /// that `update` has not counted yet. Call it when you drop gradients after `unscale`.
  void forget();

  /// Returns the current scale. Waits for a CUDA device.
  double get_scale() const;

  /// Returns the state under Python's names: "scale", "growth_factor", "backoff_factor",
  /// "growth_interval" and "_growth_tracker". Waits for a CUDA device.
  [[nodiscard]] StateDict state_dict() const;

  /// Restores a state. If a loss is already scaled, its backward pass and `step` use the loaded
  /// scale.
  /// @throws Error if an entry is missing or out of range; nothing has changed in this case.
  void load_state_dict(const StateDict& state);

 private:
  struct PerOptimizer {
    bool is_unscaled = false;
    bool is_stepped = false;
    std::vector<at::Tensor> found_inf{};  // one float scalar, 0 or 1, per device
    // A parameter and its unscaled gradient. If the parameter has another gradient now, the
    // gradients were cleared. Undefined if no step is to follow.
    at::Tensor parameter{};
    at::Tensor gradient{};
  };

  struct QueuedStep {
    StepOutcome outcome{};
    std::vector<std::pair<void*, int64_t>> counts{};  // of updates, including this one
  };

  void check_scaled() const;
  void collect(const PerOptimizer& state);
  void multiply_gradients(torch::optim::Optimizer& optimizer, PerOptimizer& state,
                          const at::Tensor& factor);

  GradScalerOptions options_;
  int64_t first_growth_ = 0;  // until `growth_` is defined
  at::Tensor scale_;          // float scalar; undefined before the first `scale`
  at::Tensor growth_;         // int scalar: consecutive updates without overflow
  std::unordered_map<const torch::optim::Optimizer*, PerOptimizer> optimizers_;
  at::Tensor collected_;  // float scalar: overflows of steps before `collect_steps`
  std::unordered_map<const torch::optim::Optimizer*, QueuedStep> queued_;
};

}  // namespace linkboy
