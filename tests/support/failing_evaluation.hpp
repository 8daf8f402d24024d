#pragma once

#include <memory>

#include "linkboy/trainer.hpp"
#include "support/expect_error.hpp"

namespace linkboy::testing {

/// Evaluates after each update. An event of the evaluation throws, and the error is caught.
class FailingEvaluation : public Callback {
 public:
  enum class Event { epoch_start, step_end, epoch_end };

  explicit FailingEvaluation(Event event, Phase phase = Phase::evaluate) : event_(event) {
    set_phase(phase);
  }

  void on_train_update_end(Trainer& trainer) override {
    is_on_ = true;
    EXPECT_ERROR(trainer.evaluate_now({.metric_prefix = "failing_"}), "bad evaluation");
    is_on_ = false;
  }
  void on_eval_epoch_start(Trainer&) override { fail_in(Event::epoch_start); }
  void on_eval_step_end(Trainer&, const Batch&, const StepOutput&) override {
    fail_in(Event::step_end);
  }
  void on_eval_epoch_end(Trainer&) override { fail_in(Event::epoch_end); }

 private:
  void fail_in(Event event) const {
    if (is_on_ && event == event_) throw Error("bad evaluation");
  }

  Event event_;
  bool is_on_ = false;
};

/// Calls `test` with a FailingEvaluation for each event, called before and after other callbacks.
template <class Test>
void for_each_failing_evaluation(const Test& test) {
  using Event = FailingEvaluation::Event;
  for (const Event event : {Event::epoch_start, Event::step_end, Event::epoch_end}) {
    for (const auto phase : {Callback::Phase::first, Callback::Phase::last}) {
      SCOPED_TRACE(
          c10::str("event ", static_cast<int>(event), ", phase ", static_cast<int>(phase)));
      test(std::make_shared<FailingEvaluation>(event, phase));
    }
  }
}

}  // namespace linkboy::testing
