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
  /// Positive.
  double init_scale = 65536.0;
  /// Factor for the scale after `growth_interval` updates in a row without an infinite or NaN
  /// gradient. More than 1.
  double growth_factor = 2.0;
  /// Factor for the scale after an update with such a gradient. Between 0 and 1.
  double backoff_factor = 0.5;
  /// Updates. At least 1.
  int64_t growth_interval = 2000;

  LINKBOY_FIELDS(init_scale, growth_factor, backoff_factor, growth_interval);
};

/// Whether a step was skipped because a gradient was infinite or NaN. A CUDA device says so when it
/// gets there.
class LINKBOY_API StepVerdict {
 public:
  /// No step was skipped.
  StepVerdict() = default;
  /// One that is known.
  explicit StepVerdict(bool was_skipped) : was_skipped_(was_skipped) {}

  /// @param found_inf  Scalars; the step is skipped if one of them is not 0.
  explicit StepVerdict(const std::vector<at::Tensor>& found_inf);

  /// Whether `was_skipped` returns without waiting for a device.
  bool is_known() const { return pending_.empty(); }
  /// Waits for the verdict, and for no later work.
  bool was_skipped() const;
  /// From here on, whether one of the two was skipped.
  void add(const StepVerdict& other);

 private:
  bool was_skipped_ = false;
  std::vector<AsyncScalar> pending_{};
};

/// Multiplies losses so that small gradients survive half precision, takes the factor out of the
/// gradients again, and skips an update whose gradients overflowed. The scales over a run are those
/// of Python's `torch.amp.GradScaler`, in every bit. Accelerator drives one for
/// Precision::fp16; by hand:
///
///     scaler.scale(loss).backward();
///     scaler.unscale(optimizer);            // if the gradients are looked at: clipping
///     if (scaler.step(optimizer)) scheduler.step();
///     scaler.update();
///
/// Works on any device. Used by one thread.
class LINKBOY_API GradScaler {
 public:
  /// @throws Error if an option is out of its range.
  explicit GradScaler(GradScalerOptions options = {});

  /// `tensor` times the scale, on its device.
  at::Tensor scale(const at::Tensor& tensor);

  /// Divides the gradients of `optimizer`'s parameters by the scale. At most once per update.
  /// @throws Error if it was called already, nothing was scaled, or a gradient is of half
  ///         precision: parameters must be kept in float.
  void unscale(torch::optim::Optimizer& optimizer);

  /// Makes the update, by `fused_step` where it can, unless a gradient is infinite or NaN;
  /// unscales first if need be. On CUDA the update is queued first, and the wait for the verdict
  /// overlaps with it.
  /// @return Whether the update was made.
  /// @throws Error if it was called already in this update, or nothing was scaled.
  bool step(torch::optim::Optimizer& optimizer);

  /// Works like `step`, but on CUDA, from the second update of each parameter on, it does not wait
  /// for the verdict. Until `settle`, or the optimizer's next step, its counts of updates
  /// include a skipped one.
  StepVerdict queue_step(torch::optim::Optimizer& optimizer);

  /// Waits for the verdict on the last `queue_step` of `optimizer`; a skipped step is no longer
  /// counted.
  void settle(const torch::optim::Optimizer& optimizer);

  /// Whether `unscale` was called for `optimizer` since the last `update`.
  bool has_unscaled(const torch::optim::Optimizer& optimizer) const;

  /// Whether the gradients of an optimizer are unscaled and its `step` is still to come. Gradients
  /// that were cleared after `unscale` do not count.
  bool awaits_step() const;

  /// Leaves out the `step` of the optimizers whose gradients are unscaled: `awaits_step` does not
  /// wait for it.
  void skip_steps();

  /// After `unscale`: an infinite or NaN gradient on one rank of `group` counts on all of them, so
  /// that `step` makes the update on all or on none. For ranks that do not average their gradients.
  /// @note Collective.
  void share_overflow(const torch::optim::Optimizer& optimizer, const ProcessGroup& group);

  /// Makes the optimizers that were stepped ready for another backward pass and `step` in the same
  /// update. The scale does not change; their overflows count at the next `update`.
  void collect_steps();

  /// Adapts the scale; once per update, after every optimizer's `step`. Without any step or
  /// `unscale` since the last time it does nothing.
  void update();

  /// Waits for a CUDA device.
  double get_scale() const;

  /// With Python's names: "scale", "growth_factor", "backoff_factor", "growth_interval",
  /// "_growth_tracker". Waits for a CUDA device.
  StateDict state_dict() const;

  /// The backward pass of a loss that was scaled before uses the loaded scale, as `step` does.
  /// @throws Error if an entry is missing or out of its range; nothing is changed then.
  void load_state_dict(const StateDict& state);

 private:
  struct PerOptimizer {
    bool is_unscaled = false;
    bool is_stepped = false;
    std::vector<at::Tensor> found_inf{};  // one float scalar, 0 or 1, per device
    // A parameter and its unscaled gradient: the gradients were cleared if it has another by now.
    // Undefined if no step is to come.
    at::Tensor parameter{};
    at::Tensor gradient{};
  };

  struct QueuedStep {
    StepVerdict verdict{};
    std::vector<std::pair<void*, int64_t>> counts{};  // of updates, with this one
  };

  void check_scaled() const;
  void collect(const PerOptimizer& state);
  void multiply_gradients(torch::optim::Optimizer& optimizer, PerOptimizer& state,
                          const at::Tensor& factor);

  GradScalerOptions options_;
  int64_t first_growth_ = 0;  // until there is a device to keep it on
  at::Tensor scale_;          // float scalar; undefined before the first `scale`
  at::Tensor growth_;         // int scalar: updates in a row without overflow
  std::unordered_map<const torch::optim::Optimizer*, PerOptimizer> optimizers_;
  at::Tensor collected_;  // float scalar: overflows of steps that `collect_steps` has forgotten
  std::unordered_map<const torch::optim::Optimizer*, QueuedStep> queued_;
};

}  // namespace linkboy
