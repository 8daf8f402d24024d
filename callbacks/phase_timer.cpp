#include "linkboy/callbacks/phase_timer.hpp"

#include <ATen/DeviceAccelerator.h>

#include <limits>
#include <utility>

#include "linkboy/error.hpp"
#include "linkboy/trainer.hpp"

namespace linkboy {
namespace {

constexpr const char* kEpochTime = "train_epoch_time";
constexpr const char* kForward = "train_forward_time";
constexpr const char* kBackward = "train_backward_time";
constexpr const char* kOptimizer = "train_optimizer_time";

void add_to(TimeSum& sum, double seconds) {
  sum.seconds += seconds;
  ++sum.count;
}

c10::IValue to_ivalue(const TimeSum& sum) {
  return StateDict{{"seconds", sum.seconds}, {"count", sum.count}}.to_ivalue();
}

TimeSum time_sum(const StateDict& state, const char* name) {
  const StateDict sum = state.get_dict(name);
  return {.seconds = sum.get_double("seconds"), .count = sum.get_int("count")};
}

}  // namespace

double TimeSum::mean() const {
  return count > 0 ? seconds / static_cast<double>(count)
                   : std::numeric_limits<double>::quiet_NaN();
}

PhaseTimer::PhaseTimer(PhaseTimerOptions options) : options_(options) {
  LINKBOY_CHECK_OPTION(options_.warmup_micro_steps >= 0, "warmup_micro_steps is ",
                       options_.warmup_micro_steps, "; it must not be negative.");
}

// Spans.

void PhaseTimer::wait_for_device(Trainer& trainer) const {
  if (!options_.synchronize || trainer.device().is_cpu()) return;
  at::accelerator::synchronizeDevice(trainer.device().index());
}

PhaseTimer::Mark PhaseTimer::mark(Trainer& trainer) const {
  wait_for_device(trainer);
  return {now(), evaluated_};
}

double PhaseTimer::since(const Mark& start) const {
  return std::chrono::duration<double>(now() - start.time).count() - (evaluated_ - start.evaluated);
}

double PhaseTimer::span(Trainer& trainer, const Mark& start) const {
  wait_for_device(trainer);
  return since(start);
}

void PhaseTimer::add(std::string_view name, TimeSum& sum, double seconds) {
  if (num_steps_ <= options_.warmup_micro_steps) return;
  add_to(sum, seconds);
  add_to(sums_[std::string(name)], seconds);
}

void PhaseTimer::record_mean(Trainer& trainer, std::string_view name, const TimeSum& sum) const {
  if (sum.count > 0) trainer.run_history().update_metric(name, sum.mean());
}

// Training.

void PhaseTimer::on_training_run_start(Trainer&) {
  sums_.clear();
  evaluations_.clear();
  num_steps_ = 0;
}

void PhaseTimer::on_train_epoch_start(Trainer& trainer) {
  const bool goes_on = is_resumed() && trainer.micro_step() > 0;
  if (!goes_on) {
    stages_ = {};
    epoch_before_ = 0.0;
  }
  evaluations_.clear();
  is_in_epoch_ = true;
  epoch_start_ = mark(trainer);
}

void PhaseTimer::on_train_step_start(Trainer& trainer) {
  ++num_steps_;
  last_ = mark(trainer);
}

void PhaseTimer::on_train_step_end(Trainer& trainer, const Batch&, const StepOutput&) {
  add(kForward, stages_.forward, span(trainer, last_));
  last_ = mark(trainer);
}

void PhaseTimer::on_gradients_ready(Trainer& trainer) {
  add(kBackward, stages_.backward, span(trainer, last_));
  last_ = mark(trainer);
}

void PhaseTimer::on_train_update_end(Trainer& trainer) {
  add(kOptimizer, stages_.optimizer, span(trainer, last_));
}

void PhaseTimer::on_train_epoch_end(Trainer& trainer) {
  const double seconds = epoch_before_ + span(trainer, epoch_start_);
  is_in_epoch_ = false;
  epoch_before_ = seconds;
  add_to(sums_[kEpochTime], seconds);
  trainer.run_history().update_metric(kEpochTime, seconds);
  record_mean(trainer, kForward, stages_.forward);
  record_mean(trainer, kBackward, stages_.backward);
  record_mean(trainer, kOptimizer, stages_.optimizer);
}

/// Returns the training time of the epoch so far, without an evaluation that is in progress or was
/// interrupted.
double PhaseTimer::seconds_in_epoch() const {
  if (!is_in_epoch_) return 0.0;
  return since(epoch_start_) - (evaluations_.empty() ? 0.0 : since(evaluations_.front().start));
}

void PhaseTimer::end_run() {
  epoch_before_ += seconds_in_epoch();
  is_in_epoch_ = false;
  evaluations_.clear();
}

// Evaluation.

void PhaseTimer::on_evaluation_run_start(Trainer&) {
  sums_.clear();
  evaluations_.clear();
}

void PhaseTimer::on_eval_epoch_start(Trainer& trainer) {
  evaluations_.push_back({.start = mark(trainer)});
}

void PhaseTimer::on_eval_step_start(Trainer& trainer) {
  if (!evaluations_.empty()) evaluations_.back().step_start = mark(trainer);
}

void PhaseTimer::on_eval_step_end(Trainer& trainer, const Batch&, const StepOutput&) {
  if (evaluations_.empty()) return;
  Evaluation& evaluation = evaluations_.back();
  add_to(evaluation.steps, span(trainer, evaluation.step_start));
}

void PhaseTimer::on_eval_epoch_end(Trainer& trainer) {
  if (evaluations_.empty()) return;  // the evaluation began before this callback was added
  const Evaluation evaluation = evaluations_.back();
  evaluations_.pop_back();
  const double seconds = span(trainer, evaluation.start);
  evaluated_ += seconds;
  const std::string epoch_name = trainer.metric_name("epoch_time");
  const std::string step_name = trainer.metric_name("step_time");
  add_to(sums_[epoch_name], seconds);
  TimeSum& steps = sums_[step_name];
  steps.seconds += evaluation.steps.seconds;
  steps.count += evaluation.steps.count;
  trainer.run_history().update_metric(epoch_name, seconds);
  record_mean(trainer, step_name, evaluation.steps);
}

// State.

StateDict PhaseTimer::state_dict() const {
  return {{kEpochTime, epoch_before_ + seconds_in_epoch()},
          {kForward, to_ivalue(stages_.forward)},
          {kBackward, to_ivalue(stages_.backward)},
          {kOptimizer, to_ivalue(stages_.optimizer)}};
}

void PhaseTimer::load_state_dict(const StateDict& state) {
  epoch_before_ = state.get_double(kEpochTime);
  stages_ = {.forward = time_sum(state, kForward),
             .backward = time_sum(state, kBackward),
             .optimizer = time_sum(state, kOptimizer)};
  is_in_epoch_ = false;
}

}  // namespace linkboy
