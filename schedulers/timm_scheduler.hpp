#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "linkboy/export.hpp"
#include "linkboy/schedulers/composite_scheduler.hpp"
#include "linkboy/util/required.hpp"

namespace linkboy {

struct TimmSchedulerOptions {
  /// Creates the schedule, which is a function of the time.
  Required<CreateSchedulerFn> scheduler;
  /// If true, the time is counted in epochs: `step(epoch)` advances it, and the schedule's
  /// placeholder num_updates is the number of epochs. If false, the time is counted in updates, and
  /// `step_update(n)` advances it.
  bool t_in_epochs = true;
};

/// Steps any schedule in the style of timm: the caller reports both the completed epochs and the
/// completed updates, and the schedule follows the one that is its unit of time. In your own loop:
///
///     scheduler.start();
///     for each epoch:  for each update:  ... optimizer.step();  scheduler.step_update(++updates);
///                      scheduler.step(++epochs);
///
/// Trainer makes the same calls, so it replaces pytorch-accelerated's TrainerWithTimmScheduler.
/// Both counts are 0 at the start of the run. For a custom class with timm's methods, see
/// TimmSteps.
class LINKBOY_API TimmScheduler final : public CompositeScheduler {
 public:
  /// The options type of the constructor.
  using Options = TimmSchedulerOptions;

  /// @throws Error if the function is empty or returns null, or if the time is counted in epochs
  ///         and the run's number of epochs or of updates per epoch is not known; any error of the
  ///         function.
  TimmScheduler(torch::optim::Optimizer& optimizer, const TimmSchedulerOptions& options,
                const RunConfig& config);

  /// Reports that an epoch is complete.
  /// @param epoch  Number of completed epochs.
  /// @throws OptionError if `epoch` is negative; Error under the same conditions as `start`.
  void step(int64_t epoch);
  /// Reports that an update is complete.
  /// @param num_updates  Number of completed updates.
  /// @throws OptionError if `num_updates` is negative; Error under the same conditions as `start`.
  void step_update(int64_t num_updates);

  /// Calls `step_update` with the next number of updates.
  void step() override { step_update(num_updates() + 1); }
  /// Calls `step` with the number of completed epochs.
  void epoch_end(int64_t num_epochs_done, const RunHistory& history, bool has_metrics) override;

  std::vector<double> values_at(int64_t update) const override;
  std::vector<FieldValues> other_values_at(int64_t update) const override;
  std::vector<Length> lengths() const override;
  StateDict state_dict() const override;
  void load_state_dict(const StateDict& state) override;
  void check_state_dict(const StateDict& state) const override;

 protected:
  int64_t now() const override;
  int64_t part_update(std::size_t /*part*/, int64_t update) const override {
    return time_at(update);
  }

 private:
  int64_t time_at(int64_t update) const;

  bool t_in_epochs_;
  int64_t num_updates_per_epoch_;
  int64_t epoch_ = 0;
};

/// Returns a function for `TrainOptions::create_scheduler_fn`.
inline CreateSchedulerFn timm_schedule(TimmSchedulerOptions options) {
  return scheduler_fn<TimmScheduler>(std::move(options));
}

/// Steps any schedule once per epoch, like a Python loop that calls `scheduler.step()` at the end
/// of each epoch. For the schedule, an epoch is one update: its lengths count epochs, num_updates
/// is the number of epochs, and num_updates_per_epoch is 1. The equivalent of
/// CosineAnnealingLR(T_max=epochs) is:
///
///     create_scheduler_fn = by_epoch(cosine({.min_lr = 0.0}))
///
/// A plateau schedule follows its metric at the end of each epoch, with or without `by_epoch`.
inline CreateSchedulerFn by_epoch(const CreateSchedulerFn& scheduler) {
  Recipe recipe = scheduler;
  recipe.options.emplace_back("by_epoch", "true");
  return {timm_schedule({.scheduler = scheduler, .t_in_epochs = true}), std::move(recipe)};
}

}  // namespace linkboy
