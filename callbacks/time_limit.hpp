#pragma once

#include <chrono>
#include <optional>

#include "linkboy/callback.hpp"
#include "linkboy/export.hpp"
#include "linkboy/util/make.hpp"
#include "linkboy/util/required.hpp"
#include "linkboy/util/text_options.hpp"

namespace linkboy {

struct TimeLimitOptions {
  /// Maximum wall time of a training run, such as `std::chrono::hours(12)`. Must be positive.
  Required<std::chrono::milliseconds> max_time;
  LINKBOY_FIELDS(max_time);
};

/// Ends a training run in an orderly way (StopReason::stop_request) when it has reached its time
/// limit. Evaluation time counts. The run ends after the update in progress; an evaluation ends as
/// described at `Trainer::request_stop`. A resumed run continues with the remaining time; the time
/// between the runs does not count.
///
/// The end counts as a stop request: ModelEma and StochasticWeightAveraging then leave the trained
/// weights in the model. The limit does not reserve time for work after the stop, such as saving;
/// choose it with a margin. With several processes, the first process that reaches the limit ends
/// the run on all processes. `Trainer::evaluate` has no limit.
class LINKBOY_API TimeLimit : public Callback {
 public:
  /// The options type for `make<TimeLimit>({...})`.
  using Options = TimeLimitOptions;

  /// @throws OptionError if `max_time` is not positive.
  explicit TimeLimit(TimeLimitOptions options);

  void on_training_run_start(Trainer& trainer) override;
  void on_train_update_end(Trainer& trainer) override { stop_if_over(trainer); }
  void on_eval_step_end(Trainer& trainer, const Batch&, const StepOutput&) override {
    stop_if_over(trainer);
  }
  void on_training_run_end(Trainer&) override { end_run(); }
  void on_exception(Trainer&, std::exception_ptr) override { end_run(); }

  /// Returns the time that the current run has taken so far, or that the last run took, including
  /// the parts before a resume.
  std::chrono::milliseconds elapsed() const;

  StateDict state_dict() const override;
  void load_state_dict(const StateDict& state) override;

 protected:
  /// The clock that measures durations.
  using Clock = std::chrono::steady_clock;

  /// Returns the current time. A subclass can override it to simulate time.
  virtual Clock::time_point now() const { return Clock::now(); }

 private:
  void stop_if_over(Trainer& trainer) const;
  void end_run();

  TimeLimitOptions options_;
  std::chrono::milliseconds before_{0};  // in the runs that this one resumes
  std::optional<Clock::time_point> start_;
};
/// Makes a TimeLimit.
inline constexpr Maker<TimeLimit> time_limit{};

}  // namespace linkboy
