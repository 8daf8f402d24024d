// Passes the records of a run to its trackers: updates once their losses have arrived from the
// device, then the metrics and histograms of epochs.

#include "linkboy/tracking/track_run.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <deque>
#include <thread>
#include <utility>

#include "linkboy/accelerator/main_process.hpp"
#include "linkboy/error.hpp"
#include "linkboy/extend/async_scalar.hpp"
#include "linkboy/extend/loss_average.hpp"
#include "linkboy/extend/metric_cursor.hpp"
#include "linkboy/run/step_output.hpp"
#include "linkboy/tracking/describe_run.hpp"
#include "linkboy/trainer.hpp"
#include "tracking/tracker_group.hpp"

namespace linkboy {
namespace {

using Scalars = std::vector<TrackedScalar>;

constexpr std::chrono::seconds kWaitAfterFailure{2};

Scalars learning_rates_of(const torch::optim::Optimizer& optimizer) {
  std::vector<double> rates;
  try {
    rates = get_param_group_field(optimizer, ParamGroupField::lr);
  } catch (const Error&) {
    return {};  // this optimizer does not have a learning rate
  }
  if (rates.size() == 1) return {{"learning_rate", rates.front()}};
  Scalars scalars;
  for (std::size_t i = 0; i < rates.size(); ++i) {
    scalars.push_back({fmt::format("learning_rate_group_{}", i), rates[i]});
  }
  return scalars;
}

}  // namespace

// The updates since the last record of the epoch.
class TrackRun::Window {
 public:
  // The record of an update, which is written when the loss has arrived.
  struct Record {
    TrackedTime time;
    AsyncScalar total;  // of the losses since the previous record
    int64_t num_samples;
    Scalars others;

    Scalars scalars() const {
      Scalars all{{"train_loss", total.value() / static_cast<double>(num_samples)}};
      all.insert(all.end(), others.begin(), others.end());
      return all;
    }
  };

  void start_epoch(const Run& run) {
    // A resumed epoch continues with the window of the saved state.
    if (run.micro_step() == 0) losses.reset();
    num_evaluations_ = 0;
    start_ = Clock::now();
    start_count_ = run.train_loss_average().count();
  }

  // Returns a record of the window and starts the next window.
  Record take(const TrackedTime& time, Trainer& trainer) {
    const auto start = std::exchange(start_, Clock::now());
    const int64_t count = trainer.run().train_loss_average().count();
    const auto samples = static_cast<double>((count - std::exchange(start_count_, count)) *
                                             trainer.accelerator().num_processes());
    const double seconds = std::chrono::duration<double>(start_ - start).count();
    Record record{.time = time,
                  .total = losses.total_async(),
                  .num_samples = losses.count(),
                  .others = learning_rates};
    if (seconds > 0.0) record.others.push_back({"samples_per_second", samples / seconds});
    losses.reset();
    return record;
  }

  // An evaluation may be between two updates, and may contain other evaluations.
  void start_evaluation() {
    if (num_evaluations_++ == 0) evaluation_start_ = Clock::now();
  }
  void end_evaluation() {
    if (--num_evaluations_ == 0) start_ += Clock::now() - evaluation_start_;
  }

  LossAverage losses;      // not the epoch's sum, which stays NaN or infinite after such a loss
  Scalars learning_rates;  // of the update in progress

 private:
  Clock::time_point start_;
  int64_t start_count_ = 0;
  int64_t num_evaluations_ = 0;
  Clock::time_point evaluation_start_;  // of the outermost one
};

// The state of a run's record, and the functions that write it.
struct TrackRun::Recorder {
  struct Value {
    TrackedTime time;
    std::string name;
    c10::IValue value;  // a number, or a tensor for a histogram
  };

  // What a training state contains. An evaluation run must not change it.
  struct Progress {
    int64_t updates_before = 0;  // in the runs that this one continues
    MetricCursor new_metrics{};
    // The records of the last update. A run that resumes there in the middle of an epoch repeats
    // them, because other trackers, or other metrics, may have recorded that update after the state
    // was saved.
    std::vector<Value> last_values{};

    void forget_before(int64_t update) {
      std::erase_if(last_values, [&](const Value& value) { return value.time.update < update; });
    }
  };

  int64_t update(Trainer& trainer) const { return progress.updates_before + trainer.num_updates(); }

  TrackedTime time(Trainer& trainer) const {
    // After an epoch, the history already has the number of the next one.
    const int64_t epoch =
        is_in_epoch ? trainer.run_history().current_epoch() : std::max<int64_t>(1, last_epoch);
    return {.update = update(trainer), .epoch = epoch, .seconds = seconds_since_1970()};
  }

  void start_training(Trainer& trainer, bool is_resumed) {
    const RunHistory& history = trainer.run_history();
    if (!is_resumed) {
      const bool continues = !history.get_metric_names().empty() && trainer.num_updates() == 0;
      progress.updates_before = continues ? last_update : 0;
      if (update(trainer) == 0) trackers.load_places({});
      progress.last_values.clear();
      progress.new_metrics.take(history);
      window.losses.reset();
    }
    const bool is_in_mid_epoch = trainer.run().micro_step() > 0;
    const bool repeats_update = is_resumed && is_in_mid_epoch;
    run = describe_run(trainer, options.name, options.config);
    run.first_update = std::max<int64_t>(0, update(trainer) - (repeats_update ? 1 : 0));
    run.first_epoch = history.current_epoch() - 1;
    run.is_resumed = is_resumed;
    start(trainer, /*may_fail=*/false);
    is_in_epoch = is_in_mid_epoch;  // others may evaluate before this one's epoch starts
    if (repeats_update) log_again(trainer);
  }

  void start_evaluation(Trainer& trainer) {
    before_evaluation = progress;
    progress.updates_before = last_update;
    progress.new_metrics.take(trainer.run_history());
    // After a training run, the evaluation continues its record and must not change its contents.
    const bool continues = last_update > 0;
    if (!continues) {
      run = describe_run(trainer, options.name, options.config);
      trackers.load_places({});
    }
    run.first_update = last_update;
    run.first_epoch = last_epoch;
    start(trainer, /*may_fail=*/continues);
  }

  void start(Trainer& trainer, bool may_fail) {
    pending.clear();
    last_update = update(trainer);
    last_epoch = run.first_epoch;
    next_flush = Clock::now();
    is_in_epoch = false;
    const std::string failure = failure_on_main_process(trainer.accelerator(), [&] {
      if (!trainer.accelerator().is_main_process()) return;
      trackers.start(run, may_fail, [&trainer](const std::string& message) {
        trainer.log(LogLevel::error, message);
      });
    });
    LINKBOY_CHECK(failure.empty(), failure);
  }

  void end(Trainer& trainer) {
    log_new_metrics(trainer);
    finish(trainer, to_string(trainer.run().result().reason));
  }

  void finish(Trainer& trainer, std::string_view outcome) {
    const RunHistory& history = trainer.run_history();
    Scalars latest;
    for (const auto& name : history.get_metric_names()) {
      latest.push_back({name, history.get_latest_metric(name)});
    }
    trackers.finish(outcome, latest);
    pending.clear();
  }

  void end_update(Trainer& trainer) {
    if (!trackers.is_on()) return;
    log_pending(/*wait=*/false);
    // An update that was skipped because of its gradients does not count.
    const bool is_new = update(trainer) != std::exchange(last_update, update(trainer));
    if (is_new) progress.forget_before(last_update);
    if (is_new && last_update % options.every_n_updates == 0) {
      pending.push_back(window.take(time(trainer), trainer));
      log_pending(/*wait=*/false);
    }
    if (Clock::now() >= next_flush) flush();
  }

  void flush() {
    trackers.for_each([](Tracker& tracker) { tracker.flush(); });
    next_flush = Clock::now() + std::chrono::duration_cast<Clock::duration>(
                                    std::chrono::duration<double>(options.flush_seconds));
  }

  void log(const Scalars& scalars, const TrackedTime& time) {
    if (scalars.empty() || !trackers.is_on()) return;
    progress.forget_before(time.update);
    for (const auto& [name, value] : scalars) progress.last_values.push_back({time, name, value});
    trackers.for_each([&](Tracker& tracker) { tracker.log_scalars(scalars, time); });
  }

  void log_again(Trainer& trainer) {
    const auto values = std::exchange(progress.last_values, {});
    // Scalars that were recorded together have the same time.
    for (auto first = values.begin(); first != values.end();) {
      Scalars scalars;
      const TrackedTime time = first->time;
      for (; first != values.end() && first->time.seconds == time.seconds; ++first) {
        if (first->value.isDouble()) {
          scalars.push_back({first->name, first->value.toDouble()});
        } else if (trackers.is_on() && time.update >= update(trainer)) {
          log_histogram(first->name, first->value.toTensor(), time);
          progress.last_values.push_back(*first);
        }
      }
      if (time.update == update(trainer)) log(scalars, time);
    }
  }

  void log_pending(bool wait) {
    while (!pending.empty() && (wait || pending.front().total.is_ready())) {
      log(pending.front().scalars(), pending.front().time);
      pending.pop_front();
    }
  }

  void log_new_metrics(Trainer& trainer) {
    Scalars fresh;
    for (auto& [name, value] : progress.new_metrics.take(trainer.run_history())) {
      fresh.push_back({std::move(name), value});
    }
    log(fresh, time(trainer));
  }

  bool is_histogram_epoch(Trainer& trainer) const {
    return options.histograms_every_n_epochs &&
           trainer.run_history().current_epoch() % *options.histograms_every_n_epochs == 0;
  }

  void log_histogram(const std::string& name, const at::Tensor& values, const TrackedTime& time) {
    trackers.for_each([&](Tracker& tracker) { tracker.log_histogram(name, values, time); });
  }

  void log_weights(Trainer& trainer) {
    const TrackedTime now = time(trainer);
    for (const auto& [name, tensor] : trainer.model().named_tensors()) {
      // An operation on all processes: with zero_stage 3, it gathers a parameter.
      if (tensor.is_floating_point()) log_histogram("weights/" + name, tensor.detach(), now);
    }
  }

  void log_gradients(Trainer& trainer) {
    TrackedTime next = time(trainer);
    ++next.update;  // the update that they belong to
    for (const auto& [name, tensor] : trainer.model().named_tensors()) {
      if (!tensor.is_leaf() || !tensor.grad().defined()) continue;
      // A training state contains only dense tensors, and the device's memory is for training.
      const at::Tensor gradient = tensor.grad().to_dense().to(at::kCPU);
      log_histogram("gradients/" + name, gradient, next);
      progress.last_values.push_back({next, "gradients/" + name, gradient.clone()});
    }
  }

  TrackRunOptions options;
  TrackerGroup trackers;
  TrackedRun run{};
  Clock::time_point next_flush{};
  Progress progress{};
  std::optional<Progress> before_evaluation{};
  int64_t last_update = 0;
  int64_t last_epoch = 0;  // the last finished epoch
  bool is_in_epoch = false;
  bool are_gradients_logged = false;
  Window window{};
  std::deque<Window::Record> pending{};
};

TrackRun::TrackRun(std::vector<std::shared_ptr<Tracker>> trackers, TrackRunOptions options) {
  LINKBOY_CHECK_OPTION(options.every_n_updates >= 1, "TrackRun's every_n_updates is ",
                       options.every_n_updates, "; it must be at least 1.");
  LINKBOY_CHECK_OPTION(options.histograms_every_n_epochs.value_or(1) >= 1,
                       "TrackRun's histograms_every_n_epochs is ",
                       *options.histograms_every_n_epochs, "; it must be at least 1.");
  LINKBOY_CHECK_OPTION(options.flush_seconds >= 0.0, "TrackRun's flush_seconds is ",
                       options.flush_seconds, "; it must not be negative.");
  // NOLINTNEXTLINE(modernize-make-unique): clang 14 cannot make an aggregate with it
  recorder_.reset(new Recorder{std::move(options), TrackerGroup(std::move(trackers))});
}

TrackRun::~TrackRun() = default;

// A run's beginning and end.

void TrackRun::on_training_run_start(Trainer& trainer) {
  recorder_->start_training(trainer, is_resumed());
}

void TrackRun::on_training_run_end(Trainer& trainer) {
  recorder_->log_pending(/*wait=*/true);
  recorder_->end(trainer);
}

void TrackRun::on_evaluation_run_start(Trainer& trainer) { recorder_->start_evaluation(trainer); }

void TrackRun::on_evaluation_run_end(Trainer& trainer) { recorder_->end(trainer); }

void TrackRun::on_exception(Trainer& trainer, std::exception_ptr) {
  // A device that has failed, or that waits for a lost rank, does not send losses any more.
  const auto deadline = Clock::now() + kWaitAfterFailure;
  try {
    while (!recorder_->pending.empty() && Clock::now() < deadline) {
      recorder_->log_pending(/*wait=*/false);
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
  } catch (const std::exception&) {  // NOLINT(bugprone-empty-catch): the run has already failed
  }
  recorder_->finish(trainer, "failed");
}

void TrackRun::on_run_exit(Trainer&) {
  const auto before = std::exchange(recorder_->before_evaluation, std::nullopt);
  if (before) recorder_->progress = *before;
}

// Updates.

void TrackRun::on_train_epoch_start(Trainer& trainer) {
  recorder_->window.start_epoch(trainer.run());
  recorder_->are_gradients_logged = trainer.run().micro_step() > 0;
  recorder_->is_in_epoch = true;
}

void TrackRun::on_train_step_end(Trainer&, const Batch&, const StepOutput& output) {
  if (!recorder_->trackers.is_on()) return;
  recorder_->window.losses.update(output.loss, output.batch_size);
}

void TrackRun::on_gradients_ready(Trainer& trainer) {
  Recorder& own = *recorder_;
  const bool is_on = own.trackers.is_on();
  // At the end of the update, the scheduler has already set the rates of the next one.
  const bool is_due = (own.update(trainer) + 1) % own.options.every_n_updates == 0;
  if (is_on && is_due) own.window.learning_rates = learning_rates_of(*trainer.optimizer());
  if (!own.is_histogram_epoch(trainer) || std::exchange(own.are_gradients_logged, true)) return;
  trainer.accelerator().unscale_gradients(*trainer.optimizer());
  if (is_on) own.log_gradients(trainer);
}

void TrackRun::on_train_update_end(Trainer& trainer) { recorder_->end_update(trainer); }

void TrackRun::log_scalars(Trainer& trainer, const std::vector<TrackedScalar>& scalars) {
  recorder_->log(scalars, recorder_->time(trainer));
}

void TrackRun::log_text(Trainer& trainer, std::string_view name, std::string_view text) {
  recorder_->trackers.for_each(
      [&](Tracker& tracker) { tracker.log_text(name, text, recorder_->time(trainer)); });
}

// Epochs.

void TrackRun::on_train_epoch_end(Trainer& trainer) {
  recorder_->log_pending(/*wait=*/true);
  recorder_->log_new_metrics(trainer);
  if (recorder_->is_histogram_epoch(trainer)) recorder_->log_weights(trainer);
}

void TrackRun::on_eval_epoch_start(Trainer&) { recorder_->window.start_evaluation(); }

void TrackRun::on_eval_epoch_end(Trainer& trainer) {
  recorder_->log_new_metrics(trainer);
  recorder_->window.end_evaluation();
}

void TrackRun::on_eval_epoch_interrupted(Trainer&) { recorder_->window.end_evaluation(); }

void TrackRun::on_training_run_epoch_end(Trainer& trainer) {
  recorder_->last_epoch = trainer.run_history().current_epoch();
  recorder_->log_new_metrics(trainer);
  recorder_->is_in_epoch = false;
  recorder_->flush();
}

// State.

StateDict TrackRun::state_dict() const {
  const Recorder& own = *recorder_;
  Recorder::Progress progress = own.progress;
  progress.forget_before(own.last_update);
  for (const Window::Record& record : own.pending) {
    if (record.time.update != own.last_update) continue;
    for (const auto& [name, value] : record.scalars()) {
      progress.last_values.push_back({record.time, name, value});
    }
  }
  c10::impl::GenericList values(c10::AnyType::get());
  for (const auto& [time, name, value] : progress.last_values) {
    StateDict record{{"update", time.update}, {"epoch", time.epoch}, {"seconds", time.seconds}};
    record.set("name", name);
    record.set("value", value);
    values.push_back(record);
  }
  return {
      {"num_logged", progress.new_metrics.state_dict()}, {"records_of_last_update", values},
      {"updates_before", progress.updates_before},       {"window_loss", own.window.losses.total()},
      {"window_samples", own.window.losses.count()},     {"places", own.trackers.places()}};
}

void TrackRun::load_state_dict(const StateDict& state) {
  Recorder::Progress& progress = recorder_->progress;
  progress.new_metrics.load_state_dict(state.get_dict("num_logged"));
  progress.last_values.clear();
  for (const c10::IValue& value : state.get_list("records_of_last_update")) {
    const StateDict record = StateDict::from_ivalue(value, "a record of TrackRun");
    const bool is_histogram = record.at("value").isTensor();
    progress.last_values.push_back(
        {{.update = record.get_int("update"),
          .epoch = record.get_int("epoch"),
          .seconds = record.get_double("seconds")},
         record.get_string("name"),
         is_histogram ? c10::IValue(record.get_tensor("value")) : record.get_double("value")});
  }
  progress.updates_before = state.get_int("updates_before");
  recorder_->window.losses.restore(state.get_double("window_loss"),
                                   state.get_int("window_samples"));
  recorder_->trackers.load_places(state.get_dict("places"));
}

}  // namespace linkboy
