#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "linkboy/export.hpp"
#include "linkboy/schedulers/composite_scheduler.hpp"
#include "linkboy/util/required.hpp"

namespace linkboy {

struct TimmSchedulerOptions {
  /// The schedule as a function of the time.
  Required<CreateSchedulerFn> scheduler;
  /// True counts the time in epochs: `step(epoch)` moves it, and to the schedule num_updates
  /// is the number of epochs. False counts it in updates: `step_update(n)` moves it.
  bool t_in_epochs = true;
};

/// timm's style of stepping, for any schedule: told both the epochs and the updates that are done,
/// it moves with the one that is its time. A loop of one's own calls
///
///     scheduler.start();
///     for each epoch:  for each update:  ... optimizer.step();  scheduler.step_update(++updates);
///                      scheduler.step(++epochs);
///
/// and Trainer does just that, so that pytorch-accelerated's TrainerWithTimmScheduler needs no
/// counterpart but Trainer itself. Both count from the start of the run. A class of your own with
/// timm's methods is a TimmSteps.
class LINKBOY_API TimmScheduler final : public CompositeScheduler {
 public:
  /// See the options.
  using Options = TimmSchedulerOptions;

  /// @throws Error if the function is empty, or the time is in epochs and the run is not known;
  ///         what the schedule throws.
  TimmScheduler(torch::optim::Optimizer& optimizer, const TimmSchedulerOptions& options,
                const RunConfig& config);

  /// After an epoch.
  /// @param epoch  Epochs done.
  void step(int64_t epoch);
  /// After an update.
  /// @param num_updates  Updates done.
  void step_update(int64_t num_updates);

  /// `step_update` with one update more.
  void step() override { step_update(num_updates() + 1); }
  /// `step` with the epochs done.
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

/// Steps any schedule once per epoch, as a loop in Python does that calls `scheduler.step()` at the
/// end of each epoch. To the schedule, an epoch is one update: its lengths count epochs,
/// num_updates is the number of epochs, and num_updates_per_epoch is 1. For
/// CosineAnnealingLR(T_max=epochs):
///
///     create_scheduler_fn = by_epoch(cosine())
///
/// A plateau follows its metric at the end of each epoch in any case.
inline CreateSchedulerFn by_epoch(CreateSchedulerFn scheduler) {
  return timm_schedule({.scheduler = std::move(scheduler), .t_in_epochs = true});
}

}  // namespace linkboy
