// Measures the spans of an update (data, forward, backward, optimizer), and subtracts the time of
// evaluations within them.

#include "linkboy/callbacks/performance_monitor.hpp"

#include <ATen/DeviceAccelerator.h>

#include <limits>
#include <utility>

#include "linkboy/error.hpp"
#include "linkboy/trainer.hpp"

namespace linkboy {
namespace {

struct Span {
  const char* name;  // of its metric, and in a state
  TimeSum TrainPerformance::*times;
};

constexpr Span kSpans[] = {{"train_data_time", &TrainPerformance::data},
                           {"train_forward_time", &TrainPerformance::forward},
                           {"train_backward_time", &TrainPerformance::backward},
                           {"train_optimizer_time", &TrainPerformance::optimizer}};

double ratio(double part, double whole) {
  return whole > 0.0 ? part / whole : std::numeric_limits<double>::quiet_NaN();
}

void add_to(TrainPerformance& sum, const TrainPerformance& more) {
  sum.num_samples += more.num_samples;
  sum.num_steps += more.num_steps;
  sum.seconds += more.seconds;
  for (const Span& span : kSpans) {
    (sum.*span.times).seconds += (more.*span.times).seconds;
    (sum.*span.times).count += (more.*span.times).count;
  }
}

}  // namespace

double TimeSum::mean() const { return ratio(seconds, static_cast<double>(count)); }

double TrainPerformance::samples_per_second() const {
  return ratio(static_cast<double>(num_samples), seconds);
}

double TrainPerformance::step_time() const {
  return ratio(seconds, static_cast<double>(num_steps));
}

PerformanceMonitor::PerformanceMonitor(PerformanceMonitorOptions options) : options_(options) {
  LINKBOY_CHECK_OPTION(options_.num_recent_updates >= 1, "num_recent_updates is ",
                       options_.num_recent_updates, "; it must be at least 1.");
  LINKBOY_CHECK_OPTION(!options_.flops_per_sample || *options_.flops_per_sample > 0.0,
                       "flops_per_sample is ", options_.flops_per_sample.value_or(0.0),
                       "; it must be positive.");
  LINKBOY_CHECK_OPTION(options_.warmup_micro_steps >= 0, "warmup_micro_steps is ",
                       options_.warmup_micro_steps, "; it must not be negative.");
}

// Spans.

double PerformanceMonitor::seconds() const {
  return std::chrono::duration<double>(now().time_since_epoch()).count() - evaluated_;
}

double PerformanceMonitor::mark(const Trainer& trainer) const {
  if (options_.synchronize && !trainer.accelerator().device().is_cpu()) {
    at::accelerator::synchronizeDevice(trainer.accelerator().device().index());
  }
  return seconds();
}

void PerformanceMonitor::add(const TrainPerformance& part) {
  add_to(epoch_, part);
  add_to(update_, part);
}

void PerformanceMonitor::end_span(const Trainer& trainer, TimeSum TrainPerformance::*span) {
  const double start = std::exchange(span_start_, mark(trainer));
  TrainPerformance part;
  part.*span = {.seconds = span_start_ - start, .count = 1};
  if (num_steps_ > options_.warmup_micro_steps || span == &TrainPerformance::data) add(part);
}

// Training.

void PerformanceMonitor::on_training_run_start(Trainer&) {
  last_epoch_.reset();
  recent_.clear();
  evaluations_.clear();
  num_steps_ = 0;
}

void PerformanceMonitor::on_train_epoch_start(Trainer& trainer) {
  const bool goes_on = is_resumed() && trainer.run().micro_step() > 0;
  if (!goes_on) epoch_ = {};
  update_ = {};
  evaluations_.clear();
  is_in_epoch_ = waits_for_batch_ = true;
  epoch_start_ = update_start_ = span_start_ = mark(trainer);
}

void PerformanceMonitor::on_train_step_start(Trainer& trainer) {
  ++num_steps_;
  if (std::exchange(waits_for_batch_, false)) {
    end_span(trainer, &TrainPerformance::data);
  } else {
    span_start_ = mark(trainer);
  }
}

void PerformanceMonitor::on_train_step_end(Trainer& trainer, const Batch&,
                                           const StepOutput& output) {
  add({.num_samples = output.batch_size, .num_steps = 1});
  end_span(trainer, &TrainPerformance::forward);
}

void PerformanceMonitor::on_gradients_ready(Trainer& trainer) {
  end_span(trainer, &TrainPerformance::backward);
}

void PerformanceMonitor::on_train_update_end(Trainer& trainer) {
  end_span(trainer, &TrainPerformance::optimizer);
  update_.seconds = span_start_ - update_start_;
  recent_.push_back(std::exchange(update_, {}));
  if (static_cast<int64_t>(recent_.size()) > options_.num_recent_updates) recent_.pop_front();
  update_start_ = span_start_;
  waits_for_batch_ = true;
}

void PerformanceMonitor::on_train_epoch_end(Trainer& trainer) {
  mark(trainer);  // waits for the device
  end_run();
  last_epoch_ = epoch_;
  if (epoch_.num_steps == 0) return;  // resumed at the epoch's end; the state lacks these values
  auto& history = trainer.run_history();
  history.update_metric("train_samples_per_second", epoch_.samples_per_second());
  history.update_metric("train_epoch_time", epoch_.seconds);
  history.update_metric("train_step_time", epoch_.step_time());
  for (const Span& span : kSpans) {
    const TimeSum& times = epoch_.*span.times;
    if (times.count > 0) history.update_metric(span.name, times.mean());
  }
  if (options_.flops_per_sample) {
    history.update_metric("train_tflops",
                          epoch_.samples_per_second() * *options_.flops_per_sample / 1e12);
  }
}

void PerformanceMonitor::end_run() {
  epoch_ = epoch_so_far();
  is_in_epoch_ = false;
  evaluations_.clear();
}

TrainPerformance PerformanceMonitor::epoch_so_far() const {
  TrainPerformance epoch = epoch_;
  // An evaluation that is in progress or was interrupted does not count.
  const double end = evaluations_.empty() ? seconds() : evaluations_.front().start;
  if (is_in_epoch_) epoch.seconds += end - epoch_start_;
  return epoch;
}

TrainPerformance PerformanceMonitor::recent() const {
  TrainPerformance sum;
  for (const auto& update : recent_) add_to(sum, update);
  return sum;
}

// Evaluation.

void PerformanceMonitor::on_eval_epoch_start(Trainer& trainer) {
  evaluations_.push_back({.start = mark(trainer)});
}

void PerformanceMonitor::on_eval_step_start(Trainer& trainer) {
  if (!evaluations_.empty()) evaluations_.back().step_start = mark(trainer);
}

void PerformanceMonitor::on_eval_step_end(Trainer& trainer, const Batch&, const StepOutput&) {
  if (evaluations_.empty()) return;
  Evaluation& evaluation = evaluations_.back();
  evaluation.steps.seconds += mark(trainer) - evaluation.step_start;
  ++evaluation.steps.count;
}

void PerformanceMonitor::on_eval_epoch_end(Trainer& trainer) {
  if (evaluations_.empty()) return;  // the evaluation began before this callback was added
  const TimeSum steps = evaluations_.back().steps;
  trainer.run_history().update_metric(trainer.run().metric_name("epoch_time"),
                                      end_evaluation(trainer));
  if (steps.count > 0) {
    trainer.run_history().update_metric(trainer.run().metric_name("step_time"), steps.mean());
  }
}

double PerformanceMonitor::end_evaluation(const Trainer& trainer) {
  if (evaluations_.empty()) return 0.0;
  const double seconds = mark(trainer) - evaluations_.back().start;
  evaluations_.pop_back();
  evaluated_ += seconds;
  return seconds;
}

// State.

StateDict PerformanceMonitor::state_dict() const {
  const TrainPerformance epoch = epoch_so_far();
  StateDict state{{"num_samples", epoch.num_samples},
                  {"num_steps", epoch.num_steps},
                  {"seconds", epoch.seconds}};
  for (const Span& span : kSpans) {
    const TimeSum& times = epoch.*span.times;
    state.set(span.name, StateDict{{"seconds", times.seconds}, {"count", times.count}});
  }
  return state;
}

void PerformanceMonitor::load_state_dict(const StateDict& state) {
  TrainPerformance epoch{.num_samples = state.get_int("num_samples"),
                         .num_steps = state.get_int("num_steps"),
                         .seconds = state.get_double("seconds")};
  for (const Span& span : kSpans) {
    const StateDict times = state.get_dict(span.name);
    epoch.*span.times = {.seconds = times.get_double("seconds"), .count = times.get_int("count")};
  }
  epoch_ = epoch;
  is_in_epoch_ = false;
}

}  // namespace linkboy
