#pragma once

#include <chrono>
#include <optional>

#include "linkboy/callback.hpp"
#include "linkboy/export.hpp"
#include "linkboy/util/required.hpp"

namespace linkboy {

struct TimeLimitOptions {
  /// Wall time that a training run may take: `std::chrono::hours(12)`. Positive.
  Required<std::chrono::milliseconds> max_time;
};

/// Ends a training run in order (StopReason::stop_request) once it has taken its time, evaluations
/// included: after the update in progress, or in an evaluation after the batch. A resumed run goes
/// on with the time that was left, but what lay between does not count.
///
/// What comes after (saving, say) is not counted in advance: choose the limit with a margin. Of
/// several processes the first whose time is over ends the run of all. A run of `evaluate` has no
/// limit.
class LINKBOY_API TimeLimit : public Callback {
 public:
  /// What `make<TimeLimit>({...})` takes.
  using Options = TimeLimitOptions;

  /// @throws Error if `max_time` is not positive.
  explicit TimeLimit(TimeLimitOptions options);

  void on_training_run_start(Trainer& trainer) override;
  void on_train_update_end(Trainer& trainer) override { stop_if_over(trainer); }
  void on_eval_step_end(Trainer& trainer, const Batch&, const StepOutput&) override {
    stop_if_over(trainer);
  }
  void on_training_run_end(Trainer&) override { end_run(); }
  void on_exception(Trainer&, std::exception_ptr) override { end_run(); }

  /// Time of the present run until now, or of the last one, including parts before a resume.
  std::chrono::milliseconds elapsed() const;

  std::vector<std::string> former_names() const override { return {"linkboy::Timer"}; }
  StateDict state_dict() const override;
  void load_state_dict(const StateDict& state) override;

 protected:
  /// What time is measured with.
  using Clock = std::chrono::steady_clock;

  /// The clock that it measures by.
  virtual Clock::time_point now() const { return Clock::now(); }

 private:
  void stop_if_over(Trainer& trainer) const;
  void end_run();

  TimeLimitOptions options_;
  std::chrono::milliseconds before_{0};  // runs that this one resumes
  std::optional<Clock::time_point> start_;
};

}  // namespace linkboy
