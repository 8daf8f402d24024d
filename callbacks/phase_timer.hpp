#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "linkboy/callback.hpp"
#include "linkboy/export.hpp"

namespace linkboy {

struct PhaseTimerOptions {
  /// Number of micro-steps at the start of a run that do not count for the forward, backward and
  /// optimizer times, because they allocate memory and choose algorithms. Must not be negative.
  int64_t warmup_micro_steps = 3;

  /// If true, waits for the device whenever a time is measured, so that on CUDA the times cover the
  /// execution of the work and not only its launch. This slows the run down.
  bool synchronize = false;

  LINKBOY_FIELDS(warmup_micro_steps, synchronize);
  /// Keys from earlier builds of 0.1, which text options may still use.
  static constexpr FormerKey kFormerKeys[] = {{"num_warmup_steps", "warmup_micro_steps"}};
};

/// The total duration of a span that was measured `count` times.
struct LINKBOY_API TimeSum {
  /// Total duration in seconds.
  double seconds = 0.0;
  /// Number of measurements.
  int64_t count = 0;

  /// Returns the mean duration in seconds, or NaN if `count` is 0.
  double mean() const;
};

/// Measures how the time of a run is spent in this process. Records these metrics for each epoch,
/// in seconds:
/// - `train_epoch_time`;
/// - `eval_epoch_time` for each evaluation, named by `Trainer::metric_name`;
/// - `train_forward_time`: mean time from the start of a micro-step to its end, which is the
///   forward pass;
/// - `train_backward_time`: mean time of the backward passes that end an accumulation window, until
///   the gradients are ready. The end of other backward passes cannot be observed;
/// - `train_optimizer_time`: mean time from then to the end of the update (clipping, optimizer,
///   scheduler);
/// - `eval_step_time`, named by `Trainer::metric_name`: mean time of an evaluation batch.
///
/// The time that other callbacks spend within a span is part of it. The time of an evaluation by
/// `Trainer::evaluate_now` does not count as training time. To measure complete micro-steps and the
/// wait for data, use PerformanceMonitor. In ExecutionMode::graph the forward time includes the
/// backward pass. The time of a resumed epoch includes the part before the resume, but not the time
/// between the runs. If an epoch consists only of warm-up micro-steps, the forward, backward and
/// optimizer times are not recorded.
class LINKBOY_API PhaseTimer : public Callback {
 public:
  /// The options type for `make<PhaseTimer>({...})`.
  using Options = PhaseTimerOptions;

  /// @throws OptionError if `warmup_micro_steps` is negative.
  explicit PhaseTimer(PhaseTimerOptions options = {});

  void on_training_run_start(Trainer& trainer) override;
  void on_train_epoch_start(Trainer& trainer) override;
  void on_train_step_start(Trainer& trainer) override;
  void on_train_step_end(Trainer& trainer, const Batch&, const StepOutput&) override;
  void on_gradients_ready(Trainer& trainer) override;
  void on_train_update_end(Trainer& trainer) override;
  void on_train_epoch_end(Trainer& trainer) override;
  void on_eval_epoch_start(Trainer& trainer) override;
  void on_eval_step_start(Trainer& trainer) override;
  void on_eval_step_end(Trainer& trainer, const Batch&, const StepOutput&) override;
  void on_eval_epoch_end(Trainer& trainer) override;
  void on_training_run_end(Trainer&) override { end_run(); }
  void on_evaluation_run_start(Trainer& trainer) override;
  void on_exception(Trainer&, std::exception_ptr) override { end_run(); }

  /// The totals of the current or last run in this process, by the names above. If the run resumed
  /// within an epoch, only `train_epoch_time` includes the part of that epoch before the resume.
  const std::map<std::string, TimeSum, std::less<>>& sums() const { return sums_; }

  std::vector<std::string> former_names() const override { return {"linkboy::Timing"}; }
  StateDict state_dict() const override;
  void load_state_dict(const StateDict& state) override;

 protected:
  /// The clock that measures durations.
  using Clock = std::chrono::steady_clock;

  /// Returns the current time. A subclass can override it to simulate time.
  virtual Clock::time_point now() const { return Clock::now(); }

 private:
  /// The start of a span, and the seconds that evaluations had taken before it.
  struct Mark {
    Clock::time_point time{};
    double evaluated = 0.0;
  };

  struct Stages {
    TimeSum forward{};
    TimeSum backward{};
    TimeSum optimizer{};
  };

  void wait_for_device(Trainer& trainer) const;
  Mark mark(Trainer& trainer) const;
  double since(const Mark& start) const;
  double span(Trainer& trainer, const Mark& start) const;
  void add(std::string_view name, TimeSum& sum, double seconds);
  void record_mean(Trainer& trainer, std::string_view name, const TimeSum& sum) const;
  double seconds_in_epoch() const;
  void end_run();

  PhaseTimerOptions options_;
  std::map<std::string, TimeSum, std::less<>> sums_;
  Stages stages_;              // of the current epoch
  double epoch_before_ = 0.0;  // seconds of the epoch in runs that this one resumes
  Mark epoch_start_;
  Mark last_;  // start of the stage in progress
  bool is_in_epoch_ = false;
  int64_t num_steps_ = 0;  // in this run, without the runs that it resumes

  /// The times of one evaluation. Evaluations can be nested.
  struct Evaluation {
    Mark start{};
    Mark step_start{};
    TimeSum steps{};
  };
  std::vector<Evaluation> evaluations_;
  double evaluated_ = 0.0;  // seconds of all finished evaluations
};

}  // namespace linkboy
