#pragma once

#include <chrono>
#include <cstdint>
#include <deque>
#include <optional>

#include "linkboy/callback.hpp"
#include "linkboy/export.hpp"

namespace linkboy {

/// The speed of a part of a training run in this process. Rates and means are NaN if nothing was
/// measured.
struct LINKBOY_API TrainPerformance {
  /// Number of samples of this process.
  int64_t num_samples = 0;
  /// Number of micro-steps.
  int64_t num_steps = 0;
  /// Wall time from the first wait for a batch to the end of the last update; for a complete epoch,
  /// to the end of the epoch.
  double seconds = 0.0;
  /// Number of waits for a batch that were measured.
  int64_t num_waits = 0;
  /// Total duration of these waits.
  double wait_seconds = 0.0;

  /// Returns the number of samples of this process per second.
  double samples_per_second() const;
  /// Returns the mean duration of a micro-step in seconds, including the wait for its batch.
  double step_time() const;
  /// Returns the mean duration of a wait for a batch in seconds. It is near 0 if the loader's
  /// workers keep up.
  double data_time() const;
};

struct PerformanceMonitorOptions {
  /// Number of updates that `recent` covers. Must be at least 1.
  int64_t num_recent_updates = 50;

  /// Floating-point operations of training per sample: about three times those of the forward pass,
  /// which ModelSummary counts. If set, `train_tflops` is recorded. Must be positive.
  std::optional<double> flops_per_sample{};

  LINKBOY_FIELDS(num_recent_updates, flops_per_sample);
};

/// Measures the speed of the training part of each epoch in this process. At the end of the epoch,
/// records `train_samples_per_second`, `train_step_time` and `train_data_time` and, if
/// `flops_per_sample` is set, `train_tflops` (10^12 floating-point operations per second).
/// Evaluations do not count, including those between two updates.
///
/// A wait for a batch lasts from the end of an update (or the start of the epoch) to the start of
/// the next micro-step. With gradient accumulation, the end of a micro-step without an update
/// cannot be observed, so only the first wait of each accumulation window is measured.
///
/// Never waits for the device. On CUDA, the times of single updates cover only the launch of the
/// work, which the device executes later. The duration of an epoch is correct, because it is
/// measured after the epoch's loss was read. The duration of a resumed epoch includes the part
/// before the resume, but not the time between the runs. The callback is called after the others
/// (see Phase::observe), so that their work after an update counts as part of its micro-step.
class LINKBOY_API PerformanceMonitor : public Callback {
 public:
  /// The options type for `make<PerformanceMonitor>({...})`.
  using Options = PerformanceMonitorOptions;

  /// @throws OptionError if an option is out of range.
  explicit PerformanceMonitor(PerformanceMonitorOptions options = {});

  void on_training_run_start(Trainer& trainer) override;
  void on_train_epoch_start(Trainer& trainer) override;
  void on_train_step_start(Trainer& trainer) override;
  void on_train_step_end(Trainer& trainer, const Batch&, const StepOutput& output) override;
  void on_train_update_end(Trainer& trainer) override;
  void on_train_epoch_end(Trainer& trainer) override;
  void on_eval_epoch_start(Trainer& trainer) override;
  void on_eval_epoch_end(Trainer& trainer) override;
  void on_training_run_end(Trainer&) override { end_epoch(); }
  void on_exception(Trainer&, std::exception_ptr) override { end_epoch(); }

  /// The last complete training epoch of the current or last run. Not set if there is none.
  const std::optional<TrainPerformance>& last_epoch() const { return last_epoch_; }
  /// Returns the part of the epoch in progress up to now; between epochs, the last epoch.
  TrainPerformance epoch_so_far() const;
  /// Returns the last `num_recent_updates` updates of this run.
  TrainPerformance recent() const;

  StateDict state_dict() const override;
  void load_state_dict(const StateDict& state) override;

 protected:
  /// The clock that measures durations.
  using Clock = std::chrono::steady_clock;

  /// Returns the current time. A subclass can override it to simulate time.
  virtual Clock::time_point now() const { return Clock::now(); }

  Phase default_phase() const override { return Phase::observe; }

 private:
  void end_epoch();

  PerformanceMonitorOptions options_;
  /// The current epoch. During the epoch, `seconds` contains only the time before `epoch_start_`,
  /// which was spent in runs that this one resumes.
  TrainPerformance epoch_;
  std::optional<TrainPerformance> last_epoch_;
  TrainPerformance update_;  // the update in progress
  std::deque<TrainPerformance> recent_;
  Clock::time_point epoch_start_{};
  Clock::time_point update_start_{};
  Clock::time_point eval_start_{};  // start of the outermost evaluation within the epoch
  int64_t num_open_evaluations_ = 0;
  bool is_in_epoch_ = false;
  bool waits_for_batch_ = false;
};

}  // namespace linkboy
