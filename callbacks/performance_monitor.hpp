#pragma once

#include <chrono>
#include <cstdint>
#include <deque>
#include <optional>
#include <vector>

#include "linkboy/callback.hpp"
#include "linkboy/export.hpp"
#include "linkboy/util/make.hpp"

namespace linkboy {

/// The total duration of a span that was measured `count` times.
struct LINKBOY_API TimeSum {
  /// Total duration in seconds.
  double seconds = 0.0;
  /// Number of measurements.
  int64_t count = 0;

  /// Returns the mean duration in seconds, or NaN if `count` is 0.
  double mean() const;
};

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
  /// The waits for a batch. Their mean is near 0 if the loader's workers keep up.
  TimeSum data{};
  /// From the start of each micro-step to its loss.
  TimeSum forward{};
  /// The backward passes that end an accumulation window, until the gradients are ready.
  TimeSum backward{};
  /// From then to the end of the update: clipping, optimizer and schedule.
  TimeSum optimizer{};

  /// Returns the number of samples of this process per second.
  double samples_per_second() const;
  /// Returns the mean duration of a micro-step in seconds, including the wait for its batch.
  double step_time() const;
};

struct PerformanceMonitorOptions {
  /// Number of updates that `recent` covers. Must be at least 1.
  int64_t num_recent_updates = 50;

  /// Floating-point operations of training per sample: about three times those of the forward pass,
  /// which ModelSummary counts. If set, `train_tflops` is recorded. Must be positive.
  std::optional<double> flops_per_sample{};

  /// Number of micro-steps at the start of a run that do not count for the forward, backward and
  /// optimizer times, because they allocate memory and choose algorithms. Must not be negative.
  int64_t warmup_micro_steps = 3;

  /// If true, waits for the device whenever a time is measured, so that on CUDA the times cover the
  /// execution of the work and not only its launch. This slows the run down.
  bool synchronize = false;

  LINKBOY_FIELDS(num_recent_updates, flops_per_sample, warmup_micro_steps, synchronize);
};

/// Measures the speed of this process. Records these metrics for each epoch, in seconds unless
/// another unit is given:
/// - `train_samples_per_second`, without a unit of time;
/// - `train_epoch_time`: the training part of the epoch;
/// - `train_step_time`: mean time of a micro-step, including the wait for its batch;
/// - `train_data_time`, `train_forward_time`, `train_backward_time`, `train_optimizer_time`: the
///   means of the spans of TrainPerformance;
/// - `train_tflops`, if `flops_per_sample` is set: 10^12 floating-point operations per second;
/// - `eval_epoch_time` and `eval_step_time` for each evaluation, named by `Trainer::metric_name`.
///
/// A wait for a batch lasts from the end of an update (or the start of the epoch) to the start of
/// the next micro-step. With gradient accumulation, the end of a micro-step without an update
/// cannot be observed, so only the first wait and the last backward pass of each accumulation
/// window are measured. In ExecutionMode::graph, the forward time includes the backward pass.
///
/// Evaluations do not count as training time, including those between two updates. The work of
/// other callbacks counts as part of the span in which they do it; this callback is called after
/// them (see Phase::observe). The times of a resumed epoch include the part before the resume, but
/// not the time between the runs. If an epoch consists only of warm-up micro-steps, the forward,
/// backward and optimizer times are not recorded.
///
/// Unless `synchronize` is true, never waits for the device. On CUDA, the times of single spans
/// then cover only the launch of the work, which the device executes later. The duration of an
/// epoch is correct, because it is measured after the epoch's loss was read.
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
  void on_gradients_ready(Trainer& trainer) override;
  void on_train_update_end(Trainer& trainer) override;
  void on_train_epoch_end(Trainer& trainer) override;
  void on_training_run_end(Trainer&) override { end_run(); }
  void on_evaluation_run_start(Trainer&) override { evaluations_.clear(); }
  void on_eval_epoch_start(Trainer& trainer) override;
  void on_eval_step_start(Trainer& trainer) override;
  void on_eval_step_end(Trainer& trainer, const Batch&, const StepOutput&) override;
  void on_eval_epoch_end(Trainer& trainer) override;
  void on_eval_epoch_interrupted(Trainer& trainer) override { end_evaluation(trainer); }
  void on_exception(Trainer&, std::exception_ptr) override { end_run(); }

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
  /// The times of one evaluation. Evaluations can be nested.
  struct Evaluation {
    double start = 0.0;
    double step_start = 0.0;
    TimeSum steps{};
  };

  /// Returns the time in seconds. It stands still during finished evaluations.
  double seconds() const;
  /// Returns `seconds()`, if requested after a wait for the device.
  double mark(const Trainer& trainer) const;
  void add(const TrainPerformance& part);
  void end_span(const Trainer& trainer, TimeSum TrainPerformance::*span);
  double end_evaluation(const Trainer& trainer);
  void end_run();

  PerformanceMonitorOptions options_;
  /// The current epoch. During the epoch, `seconds` contains only the time before `epoch_start_`,
  /// which was spent in runs that this one resumes.
  TrainPerformance epoch_;
  std::optional<TrainPerformance> last_epoch_;
  TrainPerformance update_;  // the update in progress
  std::deque<TrainPerformance> recent_;
  double epoch_start_ = 0.0;
  double update_start_ = 0.0;
  double span_start_ = 0.0;
  int64_t num_steps_ = 0;  // in this run, without the runs that it resumes
  bool is_in_epoch_ = false;
  bool waits_for_batch_ = false;
  std::vector<Evaluation> evaluations_;
  double evaluated_ = 0.0;  // seconds of all finished evaluations
};
/// Makes a PerformanceMonitor.
inline constexpr Maker<PerformanceMonitor> performance_monitor{};

}  // namespace linkboy
