#pragma once

#include <chrono>
#include <cstdint>
#include <deque>
#include <optional>

#include "linkboy/callback.hpp"
#include "linkboy/export.hpp"

namespace linkboy {

/// How fast a part of a training run was, in this process. Rates and means are NaN for nothing.
struct LINKBOY_API TrainPerformance {
  /// Samples of this process.
  int64_t num_samples = 0;
  /// Micro-batches.
  int64_t num_steps = 0;
  /// Wall time from the first wait for a batch to the end of the last update; in a whole epoch to
  /// the epoch's end.
  double seconds = 0.0;
  /// Waits for a batch that were measured.
  int64_t num_waits = 0;
  /// Their sum.
  double wait_seconds = 0.0;

  /// Speed of this process.
  double samples_per_second() const;
  /// Mean seconds of a step, the wait for its batch included.
  double step_time() const;
  /// Mean seconds that the loop waited for a batch. Near 0 if the loader's workers keep up.
  double data_time() const;
};

struct PerformanceMonitorOptions {
  /// Updates that `recent` looks back on. At least 1.
  int64_t num_recent_updates = 50;

  /// Floating-point operations that training makes for one sample: about three times those of the
  /// forward pass, which ModelSummary counts. Positive; if given, `train_tflops` is recorded.
  std::optional<double> flops_per_sample{};

  LINKBOY_FIELDS(num_recent_updates, flops_per_sample);
};

/// Measures how fast the training part of each epoch is, and records it at the epoch's end as
/// `train_samples_per_second`, `train_step_time` and `train_data_time`, and of this process
/// `train_tflops`, 10^12 floating-point operations per second, if the options say how many a sample
/// takes. Evaluation does not count, also where it comes between two updates.
///
/// A wait for a batch goes from the end of an update (or the start of the epoch) to the start of
/// the next step. Where a step makes no update (gradient accumulation) its end cannot be seen, so
/// of each window only the first wait is measured.
///
/// Never waits for the device. On CUDA the times of single updates are those of handing work over,
/// which the device does later; an epoch's seconds are right, because they end after its loss was
/// read. An epoch that was resumed counts its part before, but not the time between. Called after
/// all other callbacks: what they do after an update counts as part of its step.
class LINKBOY_API PerformanceMonitor : public Callback {
 public:
  /// What `make<PerformanceMonitor>({...})` takes.
  using Options = PerformanceMonitorOptions;

  /// @throws Error if `num_recent_updates` is less than 1, or `flops_per_sample` is not positive.
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

  /// The last epoch that was trained to its end in the present or the last run.
  const std::optional<TrainPerformance>& last_epoch() const { return last_epoch_; }
  /// The epoch in progress until now; between epochs the last one, as far as it came.
  TrainPerformance epoch_so_far() const;
  /// The last updates of this run.
  TrainPerformance recent() const;

  StateDict state_dict() const override;
  void load_state_dict(const StateDict& state) override;

 protected:
  /// What time is measured with.
  using Clock = std::chrono::steady_clock;

  /// The clock that it measures by.
  virtual Clock::time_point now() const { return Clock::now(); }

  Phase default_phase() const override { return Phase::observe; }

 private:
  void end_epoch();

  PerformanceMonitorOptions options_;
  /// This epoch; its seconds are those before `epoch_start_`, in runs that this one resumes.
  TrainPerformance epoch_;
  std::optional<TrainPerformance> last_epoch_;
  TrainPerformance update_;  // the one in progress
  std::deque<TrainPerformance> recent_;
  Clock::time_point epoch_start_{};
  Clock::time_point update_start_{};
  Clock::time_point eval_start_{};  // of the outermost evaluation within the epoch
  int64_t num_open_evaluations_ = 0;
  bool is_in_epoch_ = false;
  bool waits_for_batch_ = false;
};

}  // namespace linkboy
