#pragma once

#include <chrono>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "linkboy/callback.hpp"
#include "linkboy/export.hpp"
#include "linkboy/extend/async_scalar.hpp"
#include "linkboy/extend/loss_average.hpp"
#include "linkboy/extend/metric_cursor.hpp"
#include "linkboy/tracking/tracker.hpp"

namespace linkboy {

struct TrackRunOptions {
  /// What the run is called in the trackers. May be empty.
  std::string name{};
  /// Beside what the run resolved to; replaces entries of the same name.
  TrackedRun::Entries config{};
  /// How often the training loss, learning rate and speed are recorded. At least 1.
  int64_t every_n_updates = 50;
  /// How often weights and gradients are. At least 1.
  std::optional<int64_t> histograms_every_n_epochs{};
  /// Longest time for which a record may be lost with the program; epochs end with a flush anyway.
  /// Not negative.
  double flush_seconds = 10.0;

  LINKBOY_FIELDS(name, every_n_updates, histograms_every_n_epochs, flush_seconds);
};

/// Records runs in trackers, on the main process alone. A program killed at any time leaves what it
/// had recorded; a run that resumes a training state records nothing twice.
///
/// - Every so many updates: `train_loss`, the mean over the main process's samples since the record
///   before in this epoch; `learning_rate` of that update, or `learning_rate_group_N` for each of
///   several param groups; and `samples_per_second` of all processes, evaluations left out. No
///   update waits for its loss: the record is written when the number has come.
/// - Each new value of the run history once, as LogMetrics finds them.
/// - Histograms of all weights at the end of an epoch, as `weights/NAME`, and of the gradients in
///   its first update, before clipping, as `gradients/NAME`. They wait for the device.
///
/// A run that resumes a training state continues the records that the state names
/// (Tracker::place), whatever other runs of its name there are.
///
/// A further `train` is a run of its own, or continues the record if it continues the run
/// history. An `evaluate` continues the record of the training run before it, if there was one.
///
/// A tracker that cannot start ends the run before it trains; one that fails later is named by
/// `Trainer::print` and left out for the rest of the run. Called after most callbacks, so that it
/// sees their metrics.
class LINKBOY_API TrackRun : public Callback {
 public:
  /// What `make<TrackRun>(subject, {...})` takes.
  /// @{
  using Subject = std::vector<std::shared_ptr<Tracker>>;
  using Options = TrackRunOptions;
  /// @}

  /// @throws Error if a tracker is null or given twice, or an option is out of its range.
  explicit TrackRun(std::vector<std::shared_ptr<Tracker>> trackers, TrackRunOptions options = {});

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
  void on_training_run_epoch_end(Trainer& trainer) override;
  void on_training_run_end(Trainer& trainer) override;
  /// A tracker that has failed in the training run before, or cannot start after one, is left out.
  /// @throws Error if a tracker cannot start and there was no training run before.
  void on_evaluation_run_start(Trainer& trainer) override;
  void on_evaluation_run_end(Trainer& trainer) override;
  void on_exception(Trainer& trainer, std::exception_ptr exception) override;

  /// Records something of one's own, at the update in progress, from within any event of a run;
  /// on other processes than the main one, and outside of runs, does nothing.
  void log_scalars(Trainer& trainer, const std::vector<TrackedScalar>& scalars);
  /// The same for a text.
  void log_text(Trainer& trainer, std::string_view name, std::string_view text);

  StateDict state_dict() const override;
  void load_state_dict(const StateDict& state) override;

 protected:
  Phase default_phase() const override { return Phase::track; }

 private:
  using Clock = std::chrono::steady_clock;

  struct Sink {
    std::shared_ptr<Tracker> tracker;
    bool is_on = false;
    std::string place{};      // Tracker::place of the run that is on, or may go on
    bool has_failed = false;  // in the training run or the evaluations after it
  };

  /// What is recorded of an update, once the loss is there.
  struct PendingRecord {
    TrackedTime time;
    AsyncScalar total;  // of the losses since the record before
    int64_t num_samples;
    std::vector<TrackedScalar> others;

    bool is_ready() const { return total.is_ready(); }
    std::vector<TrackedScalar> scalars() const;
  };

  void start(Trainer& trainer, TrackedRun run);
  void finish(Trainer& trainer, std::string_view outcome);
  void forget_places();
  StateDict places() const;
  void load_places(const StateDict& places);
  void call(Trainer& trainer, Sink& sink, const std::function<void(Tracker&)>& work);
  void for_each_tracker(Trainer& trainer, const std::function<void(Tracker&)>& work);
  void log(Trainer& trainer, const std::vector<TrackedScalar>& scalars, const TrackedTime& time);
  void log_again(Trainer& trainer);
  void log_pending(Trainer& trainer, bool wait);
  void log_new_metrics(Trainer& trainer);
  void log_histogram(Trainer& trainer, const std::string& name, const at::Tensor& values,
                     const TrackedTime& time);
  void log_histograms(Trainer& trainer, bool of_gradients);
  void flush(Trainer& trainer);
  PendingRecord make_record(Trainer& trainer);
  bool is_histogram_epoch(Trainer& trainer) const;
  int64_t update(Trainer& trainer) const;
  TrackedTime time(Trainer& trainer) const;

  TrackRunOptions options_;
  std::vector<Sink> sinks_;
  bool is_on_ = false;
  bool is_evaluation_ = false;
  TrackedRun run_;
  Clock::time_point next_flush_;

  int64_t updates_before_ = 0;  // in the runs that this one goes on from
  int64_t last_update_ = 0;
  int64_t last_epoch_ = 0;  // that was finished

  MetricCursor new_metrics_;

  // The updates since the last record of the epoch.
  LossAverage window_;
  Clock::time_point window_start_;
  bool is_in_epoch_ = false;
  int64_t num_open_evaluations_ = 0;
  Clock::time_point evaluation_start_;  // of the outermost
  int64_t window_start_count_ = 0;
  std::vector<TrackedScalar> learning_rates_;

  std::deque<PendingRecord> pending_;
  bool are_gradients_logged_ = false;

  // The records of the last update: a run that resumes there in mid-epoch repeats them,
  // since what other trackers, or other metrics, have of that update may come later than its state.
  struct Record {
    TrackedTime time;
    TrackedScalar scalar;
  };
  std::vector<Record> records_of_last_update_;
};

}  // namespace linkboy
