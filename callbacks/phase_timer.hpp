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
  /// Training steps at the start of a run that are left out of the forward, backward and optimizer
  /// times: they allocate memory and choose algorithms. Not negative.
  int64_t warmup_micro_steps = 3;

  /// Waits for the device wherever a time is taken, so that on CUDA the times are those of the
  /// work and not of handing it over. Slows the run down.
  bool synchronize = false;

  LINKBOY_FIELDS(warmup_micro_steps, synchronize);
  /// Keys of version 0.1, which texts may still have.
  static constexpr FormerKey kFormerKeys[] = {{"num_warmup_steps", "warmup_micro_steps"}};
};

/// Seconds of what happened `count` times.
struct LINKBOY_API TimeSum {
  /// All of them together.
  double seconds = 0.0;
  /// How often it happened.
  int64_t count = 0;

  /// NaN for nothing.
  double mean() const;
};

/// Measures where the time of a run goes in this process, and records in seconds, for each epoch:
/// - `train_epoch_time`, and `eval_epoch_time` of each evaluation, named by `Trainer::metric_name`;
/// - `train_forward_time`: mean from the start of a step to its end, which is the forward pass;
/// - `train_backward_time`: mean of the backward passes that end a window, until the gradients are
///   ready; of other windows' steps the end cannot be seen;
/// - `train_optimizer_time`: mean from there to the update's end: clipping, optimizer, scheduler;
/// - `eval_step_time`, named in the same way: mean of an evaluation's steps.
///
/// What other callbacks do in the course of a span is part of it. An evaluation that
/// `Trainer::evaluate_now` makes does not count as training. Times of whole steps and of the wait
/// for data are PerformanceMonitor's. In ExecutionMode::graph the forward time holds the backward
/// pass as well. An epoch that was resumed counts its part before, but not the time between. An
/// epoch that has nothing but warm-up steps records no means.
class LINKBOY_API PhaseTimer : public Callback {
 public:
  /// What `make<PhaseTimer>({...})` takes.
  using Options = PhaseTimerOptions;

  /// @throws Error if `warmup_micro_steps` is negative.
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

  /// Sums over the present run, or the last one, this process's part of it; by the names above.
  const std::map<std::string, TimeSum, std::less<>>& sums() const { return sums_; }

  std::vector<std::string> former_names() const override { return {"linkboy::Timing"}; }
  StateDict state_dict() const override;
  void load_state_dict(const StateDict& state) override;

 protected:
  /// What time is measured with.
  using Clock = std::chrono::steady_clock;

  /// The clock that it measures by.
  virtual Clock::time_point now() const { return Clock::now(); }

 private:
  /// Where a span began, and the seconds of evaluations until then.
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
  Stages stages_;              // of the epoch
  double epoch_before_ = 0.0;  // seconds of it in runs that this one resumes
  Mark epoch_start_;
  Mark last_;  // where the stage in progress began
  bool is_in_epoch_ = false;
  int64_t num_steps_ = 0;  // of this process's run

  /// Times of an evaluation and of those around it.
  struct Evaluation {
    Mark start{};
    Mark step_start{};
    TimeSum steps{};
  };
  std::vector<Evaluation> evaluations_;
  double evaluated_ = 0.0;  // seconds of all evaluations that have ended
};

}  // namespace linkboy
