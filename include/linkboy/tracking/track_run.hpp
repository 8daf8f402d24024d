#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "linkboy/callback.hpp"
#include "linkboy/export.hpp"
#include "linkboy/tracking/tracker.hpp"
#include "linkboy/util/make.hpp"

namespace linkboy {

struct TrackRunOptions {
  /// The name of the run in the trackers. May be empty.
  std::string name{};
  /// Entries to record in addition to the resolved options of the run. They replace entries with
  /// the same name.
  TrackedRun::Entries config{};
  /// Number of updates between two records of the training loss, learning rate and speed. Must be
  /// at least 1.
  int64_t every_n_updates = 50;
  /// Number of epochs between two records of weights and gradients. If not set, they are not
  /// recorded. Must be at least 1.
  std::optional<int64_t> histograms_every_n_epochs{};
  /// An update flushes the records if this many seconds have passed since the last flush, and each
  /// epoch ends with a flush. If the program is killed, records after the last flush can be lost.
  /// Must not be negative.
  double flush_seconds = 10.0;

  LINKBOY_FIELDS(name, every_n_updates, histograms_every_n_epochs, flush_seconds);
};

/// Records runs in trackers, on the main process only. If the program is killed, the records up to
/// the last flush remain. A run that resumes from a training state does not record anything twice.
///
/// - Every `every_n_updates` updates: `train_loss`, the mean over the main process's samples since
///   the previous record in this epoch; `learning_rate` of that update, or `learning_rate_group_N`
///   for each of several param groups; and `samples_per_second` of all processes, excluding
///   evaluations. No update waits for its loss: the record is written when the loss has arrived.
/// - Each new value of the run history once, as in LogMetrics.
/// - With `histograms_every_n_epochs`: histograms of all weights after the last update of the
///   epoch, as `weights/NAME`, and of the gradients in its first update, before clipping, as
///   `gradients/NAME`. Recording them waits for the device. A training state that is saved directly
///   after that update contains the gradients.
///
/// A run that resumes from a training state continues the records whose places (Tracker::place) the
/// state contains, regardless of other runs with the same name.
///
/// Another `train` starts a new record, unless it continues the run history; in that case it
/// continues the record. `evaluate` continues the record of the previous training run, if there is
/// one.
///
/// If a tracker cannot start, the run fails before training. If a tracker fails later, the error is
/// printed, and the rest of the run is not recorded in this tracker. The callback is called after
/// most others, so that it gets their metrics.
class LINKBOY_API TrackRun : public Callback {
 public:
  /// The argument types for `make<TrackRun>(subject, {...})`.
  /// @{
  using Subject = std::vector<std::shared_ptr<Tracker>>;
  using Options = TrackRunOptions;
  /// @}

  /// @throws OptionError if a tracker is null or given twice, or if an option is out of range.
  explicit TrackRun(std::vector<std::shared_ptr<Tracker>> trackers, TrackRunOptions options = {});
  ~TrackRun() override;

  bool writes_files() const override { return true; }

  /// @throws Error if a tracker cannot start.
  void on_training_run_start(Trainer& trainer) override;
  void on_train_epoch_start(Trainer& trainer) override;
  void on_train_step_end(Trainer& trainer, const Batch&, const StepOutput& output) override;
  void on_gradients_ready(Trainer& trainer) override;
  void on_train_update_end(Trainer& trainer) override;
  void on_train_epoch_end(Trainer& trainer) override;
  void on_eval_epoch_start(Trainer& trainer) override;
  void on_eval_epoch_end(Trainer& trainer) override;
  void on_eval_epoch_interrupted(Trainer& trainer) override;
  void on_training_run_epoch_end(Trainer& trainer) override;
  void on_training_run_end(Trainer& trainer) override;
  /// Leaves out a tracker that failed in the previous training run or cannot start after one.
  /// @throws Error if a tracker cannot start and there was no previous training run.
  void on_evaluation_run_start(Trainer& trainer) override;
  void on_evaluation_run_end(Trainer& trainer) override;
  void on_exception(Trainer& trainer, std::exception_ptr exception) override;
  void on_run_exit(Trainer& trainer) override;

  /// Records custom values at the update in progress. Call it in any event of a run. Does nothing
  /// outside of runs and on processes other than the main process.
  void log_scalars(Trainer& trainer, const std::vector<TrackedScalar>& scalars);
  /// Records a text under the same conditions.
  void log_text(Trainer& trainer, std::string_view name, std::string_view text);

  StateDict state_dict() const override;
  void load_state_dict(const StateDict& state) override;

 protected:
  Phase default_phase() const override { return Phase::track; }

 private:
  using Clock = std::chrono::steady_clock;
  class Window;
  struct Recorder;

  std::unique_ptr<Recorder> recorder_;
};
/// Makes a TrackRun.
inline constexpr Maker<TrackRun> track_run{};

}  // namespace linkboy
