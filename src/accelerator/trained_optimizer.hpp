#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/FunctionRef.h>
#include <torch/optim/optimizer.h>

#include <memory>
#include <optional>
#include <utility>

#include "linkboy/accelerator.hpp"
#include "linkboy/run/run_config.hpp"
#include "linkboy/run/run_history.hpp"
#include "linkboy/scheduler.hpp"
#include "run/base_values.hpp"

namespace linkboy {

/// Whether the step of `optimizer` evaluates a closure.
bool needs_closure(const torch::optim::Optimizer& optimizer);

/// Clips the gradients of all parameters of the optimizer according to the configuration.
/// @return Their 2-norm before clipping; undefined without `gradient_clip_norm`.
/// @note Collective if `zero_stage` is 2 or 3 and `gradient_clip_norm` is set.
at::Tensor clip_gradients(Accelerator& accelerator, torch::optim::Optimizer& optimizer,
                          const RunConfig& config);

/// An optimizer, its schedule, and the outcome of its last step until the host knows it. Trainer
/// has one for its own and for each registered optimizer, Engine has one.
class TrainedOptimizer {
 public:
  /// @param optimizer  May be null, for a Trainer that only evaluates.
  explicit TrainedOptimizer(std::shared_ptr<torch::optim::Optimizer> optimizer)
      : optimizer_(std::move(optimizer)) {}

  const std::shared_ptr<torch::optim::Optimizer>& get() const { return optimizer_; }
  torch::optim::Optimizer& operator*() const { return *optimizer_; }
  explicit operator bool() const { return optimizer_ != nullptr; }

  /// The schedule of the current or last run; may be null.
  Scheduler* scheduler() const { return schedule_.scheduler.get(); }

  /// Replaces the schedule and starts it. The new one starts from the base values, not from the
  /// last values of the previous one, which are still in the optimizer. If `create` returns null or
  /// throws, the optimizer keeps its values.
  void replace_scheduler(c10::function_ref<std::unique_ptr<Scheduler>()> create,
                         int64_t num_updates_of_run, bool may_change_lengths,
                         const RunHistory& history);

  // One update: finish_step (of the previous one), begin_step, clipping, the step, end_step.

  /// Whether the outcome of the last step has not been used yet.
  bool is_pending() const { return outcome_.has_value(); }
  /// Whether the outcome of the last step can be used without waiting for the device.
  bool is_outcome_known() const { return outcome_ && outcome_->is_known(); }
  /// Uses the outcome of the last step; may wait for the device. Returns whether there was a step
  /// and it was not skipped; then it counts, and the schedule must be stepped.
  bool finish_step(Accelerator& accelerator);
  /// Drops the outcome of the last step.
  void forget_step() { outcome_.reset(); }
  /// Sets the schedule's values in param groups that were added since the last step.
  void begin_step();
  /// @param outcome  Whether the step was skipped; the host may find out later.
  void end_step(StepOutcome outcome) { outcome_ = std::move(outcome); }
  /// Begins the step, clips the gradients and steps the optimizer. `end_step` must follow.
  /// @return The norm that `clip_gradients` returns.
  at::Tensor step(Accelerator& accelerator, const RunConfig& config);

  /// Returns the optimizer's state with the base values.
  /// @note Collective, with `zero_stage`.
  StateDict state_dict(const Accelerator& accelerator) const;
  /// Reads the base values from a state that was loaded into the optimizer.
  void load_base_values(const StateDict& state) { schedule_.base_values.load(state, *optimizer_); }

  /// What a trial of a finder replaces.
  struct Schedule {
    std::unique_ptr<Scheduler> scheduler{};
    BaseValues base_values{};  // of the schedules of earlier runs
  };
  /// Exchanges the schedule without a change of the optimizer.
  void exchange_schedule(Schedule& other) {
    keep_base_values();
    std::swap(schedule_, other);
  }

 private:
  void keep_base_values() {
    if (schedule_.scheduler) schedule_.base_values.keep(*schedule_.scheduler, *optimizer_);
  }

  std::shared_ptr<torch::optim::Optimizer> optimizer_;
  Schedule schedule_;
  std::optional<StepOutcome> outcome_;
};

}  // namespace linkboy
