#include "linkboy/callbacks/performance_monitor.hpp"

#include <limits>
#include <utility>

#include "linkboy/error.hpp"
#include "linkboy/trainer.hpp"

namespace linkboy {
namespace {

double ratio(double part, double whole) {
  return whole > 0.0 ? part / whole : std::numeric_limits<double>::quiet_NaN();
}

void add(TrainPerformance& sum, const TrainPerformance& more) {
  sum.num_samples += more.num_samples;
  sum.num_steps += more.num_steps;
  sum.seconds += more.seconds;
  sum.num_waits += more.num_waits;
  sum.wait_seconds += more.wait_seconds;
}

template <class Duration>
double seconds(Duration duration) {
  return std::chrono::duration<double>(duration).count();
}

}  // namespace

double TrainPerformance::samples_per_second() const {
  return ratio(static_cast<double>(num_samples), seconds);
}

double TrainPerformance::step_time() const {
  return ratio(seconds, static_cast<double>(num_steps));
}

double TrainPerformance::data_time() const {
  return ratio(wait_seconds, static_cast<double>(num_waits));
}

PerformanceMonitor::PerformanceMonitor(PerformanceMonitorOptions options) : options_(options) {
  LINKBOY_CHECK_OPTION(options_.num_recent_updates >= 1, "num_recent_updates is ",
                       options_.num_recent_updates, "; it must be at least 1.");
  LINKBOY_CHECK_OPTION(!options_.flops_per_sample || *options_.flops_per_sample > 0.0,
                       "flops_per_sample is ", options_.flops_per_sample.value_or(0.0),
                       "; it must be positive.");
}

void PerformanceMonitor::on_training_run_start(Trainer&) {
  last_epoch_.reset();
  recent_.clear();
}

void PerformanceMonitor::on_train_epoch_start(Trainer& trainer) {
  const bool goes_on = is_resumed() && trainer.micro_step() > 0;
  if (!goes_on) epoch_ = {};
  update_ = {};
  epoch_start_ = update_start_ = now();
  num_open_evaluations_ = 0;
  is_in_epoch_ = waits_for_batch_ = true;
}

void PerformanceMonitor::on_train_step_start(Trainer&) {
  if (!std::exchange(waits_for_batch_, false)) return;
  const TrainPerformance wait{.num_waits = 1, .wait_seconds = seconds(now() - update_start_)};
  add(epoch_, wait);
  add(update_, wait);
}

void PerformanceMonitor::on_train_step_end(Trainer&, const Batch&, const StepOutput& output) {
  const TrainPerformance step{.num_samples = output.batch_size, .num_steps = 1};
  add(epoch_, step);
  add(update_, step);
}

void PerformanceMonitor::on_train_update_end(Trainer&) {
  const auto end = now();
  update_.seconds = seconds(end - update_start_);
  recent_.push_back(std::exchange(update_, {}));
  if (static_cast<int64_t>(recent_.size()) > options_.num_recent_updates) recent_.pop_front();
  update_start_ = end;
  waits_for_batch_ = true;
}

void PerformanceMonitor::on_train_epoch_end(Trainer& trainer) {
  end_epoch();
  last_epoch_ = epoch_;
  if (epoch_.num_steps == 0) return;  // resumed at the epoch's end; the state lacks these values
  auto& history = trainer.run_history();
  history.update_metric("train_samples_per_second", epoch_.samples_per_second());
  history.update_metric("train_step_time", epoch_.step_time());
  history.update_metric("train_data_time", epoch_.data_time());
  if (options_.flops_per_sample) {
    history.update_metric("train_tflops",
                          epoch_.samples_per_second() * *options_.flops_per_sample / 1e12);
  }
}

void PerformanceMonitor::on_eval_epoch_start(Trainer&) {
  if (is_in_epoch_ && num_open_evaluations_++ == 0) eval_start_ = now();
}

void PerformanceMonitor::on_eval_epoch_end(Trainer&) {
  if (!is_in_epoch_ || --num_open_evaluations_ > 0) return;
  const auto evaluated = now() - eval_start_;
  epoch_start_ += evaluated;
  update_start_ += evaluated;
}

void PerformanceMonitor::end_epoch() {
  epoch_ = epoch_so_far();
  is_in_epoch_ = false;
}

TrainPerformance PerformanceMonitor::epoch_so_far() const {
  TrainPerformance epoch = epoch_;
  const auto end = num_open_evaluations_ > 0 ? eval_start_ : now();
  if (is_in_epoch_) epoch.seconds += seconds(end - epoch_start_);
  return epoch;
}

TrainPerformance PerformanceMonitor::recent() const {
  TrainPerformance sum;
  for (const auto& update : recent_) add(sum, update);
  return sum;
}

StateDict PerformanceMonitor::state_dict() const {
  const TrainPerformance epoch = epoch_so_far();
  StateDict state;
  state.set("num_samples", epoch.num_samples);
  state.set("num_steps", epoch.num_steps);
  state.set("seconds", epoch.seconds);
  state.set("num_waits", epoch.num_waits);
  state.set("wait_seconds", epoch.wait_seconds);
  return state;
}

void PerformanceMonitor::load_state_dict(const StateDict& state) {
  epoch_ = {.num_samples = state.get_int("num_samples"),
            .num_steps = state.get_int("num_steps"),
            .seconds = state.get_double("seconds"),
            .num_waits = state.get_int("num_waits"),
            .wait_seconds = state.get_double("wait_seconds")};
  is_in_epoch_ = false;
}

}  // namespace linkboy
