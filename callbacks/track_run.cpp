// Passes the records of a run to its trackers: updates once their losses have arrived from the
// device, then the metrics and histograms of epochs.

#include "linkboy/callbacks/track_run.hpp"

#include <c10/util/Type.h>
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <map>
#include <thread>
#include <tuple>
#include <typeinfo>
#include <utility>

#include "linkboy/accelerator/main_process.hpp"
#include "linkboy/callbacks/describe_run.hpp"
#include "linkboy/error.hpp"
#include "linkboy/run/step_output.hpp"
#include "linkboy/trainer.hpp"

namespace linkboy {
namespace {

constexpr std::chrono::seconds kWaitAfterFailure{2};

double seconds_since_1970() {
  const auto since_1970 = std::chrono::system_clock::now().time_since_epoch();
  return std::chrono::duration<double>(since_1970).count();
}

std::vector<TrackedScalar> latest_metrics(const RunHistory& history) {
  std::vector<TrackedScalar> latest;
  for (const auto& name : history.get_metric_names()) {
    latest.push_back({name, history.get_latest_metric(name)});
  }
  return latest;
}

std::vector<TrackedScalar> learning_rates(const torch::optim::Optimizer& optimizer) {
  std::vector<double> rates;
  try {
    rates = get_param_group_field(optimizer, ParamGroupField::lr);
  } catch (const Error&) {
    return {};  // this optimizer does not have a learning rate
  }
  if (rates.size() == 1) return {{"learning_rate", rates.front()}};
  std::vector<TrackedScalar> scalars;
  for (std::size_t i = 0; i < rates.size(); ++i) {
    scalars.push_back({fmt::format("learning_rate_group_{}", i), rates[i]});
  }
  return scalars;
}

}  // namespace

TrackRun::TrackRun(std::vector<std::shared_ptr<Tracker>> trackers, TrackRunOptions options)
    : options_(std::move(options)) {
  LINKBOY_CHECK_OPTION(options_.every_n_updates >= 1, "TrackRun's every_n_updates is ",
                       options_.every_n_updates, "; it must be at least 1.");
  LINKBOY_CHECK_OPTION(options_.histograms_every_n_epochs.value_or(1) >= 1,
                       "TrackRun's histograms_every_n_epochs is ",
                       *options_.histograms_every_n_epochs, "; it must be at least 1.");
  LINKBOY_CHECK_OPTION(options_.flush_seconds >= 0.0, "TrackRun's flush_seconds is ",
                       options_.flush_seconds, "; it must not be negative.");
  for (auto& tracker : trackers) {
    LINKBOY_CHECK_OPTION(tracker != nullptr, "TrackRun's tracker ", sinks_.size(),
                         " is null; pass a tracker.");
    for (const Sink& sink : sinks_) {
      LINKBOY_CHECK_OPTION(sink.tracker != tracker, "TrackRun's tracker ", sinks_.size(),
                           " is the same object as an earlier one; pass each tracker only once.");
    }
    sinks_.push_back({std::move(tracker)});
  }
}

// A run's beginning and end.

void TrackRun::on_training_run_start(Trainer& trainer) {
  is_evaluation_ = false;
  for (Sink& sink : sinks_) sink.has_failed = false;
  const bool goes_on = is_resumed();
  if (!goes_on) {
    const bool has_history = !trainer.run_history().get_metric_names().empty();
    updates_before_ = has_history && trainer.num_updates() == 0 ? last_update_ : 0;
    if (update(trainer) == 0) forget_places();
    records_of_last_update_.clear();
    new_metrics_.take(trainer.run_history());
    window_.reset();
  }
  const bool is_in_mid_epoch = goes_on && trainer.run().micro_step() > 0;
  TrackedRun run = describe_run(trainer, options_.name, options_.config);
  run.first_update = std::max<int64_t>(0, update(trainer) - (is_in_mid_epoch ? 1 : 0));
  run.first_epoch = trainer.run_history().current_epoch() - 1;
  run.is_resumed = goes_on;
  start(trainer, std::move(run));
  // Others may evaluate before this one's epoch starts.
  is_in_epoch_ = trainer.run().micro_step() > 0;
  if (is_in_mid_epoch) log_again(trainer);
}

void TrackRun::on_evaluation_run_start(Trainer& trainer) {
  is_evaluation_ = true;
  before_evaluation_ = {updates_before_, new_metrics_, records_of_last_update_};
  updates_before_ = last_update_;
  new_metrics_.take(trainer.run_history());
  // After a training run, the evaluation continues its record and must not change its contents.
  TrackedRun run = std::move(run_);
  if (last_update_ == 0) {
    run = describe_run(trainer, options_.name, options_.config);
    forget_places();
  }
  run.first_update = last_update_;
  run.first_epoch = last_epoch_;
  start(trainer, std::move(run));
}

void TrackRun::start(Trainer& trainer, TrackedRun run) {
  run_ = std::move(run);
  pending_.clear();
  last_update_ = update(trainer);
  last_epoch_ = run_.first_epoch;
  next_flush_ = Clock::now();
  is_in_epoch_ = false;
  num_open_evaluations_ = 0;
  is_on_ = trainer.accelerator().is_main_process();
  for (Sink& sink : sinks_) sink.is_on = false;
  // A tracker must not prevent an evaluation after a training run.
  const bool may_fail = is_evaluation_ && last_update_ > 0;
  const std::string failure = failure_on_main_process(trainer.accelerator(), [&] {
    for (Sink& sink : sinks_) {
      if (!is_on_ || sink.has_failed) continue;
      const auto start_tracker = [&](Tracker& tracker) {
        TrackedRun own = run_;
        own.place = sink.place;
        tracker.start(own);
        sink.place = tracker.place();
        sink.is_on = true;
      };
      if (may_fail) {
        call(trainer, sink, start_tracker);
      } else {
        start_tracker(*sink.tracker);
      }
    }
  });
  LINKBOY_CHECK(failure.empty(), failure);
}

void TrackRun::forget_places() {
  for (Sink& sink : sinks_) sink.place.clear();
}

void TrackRun::on_training_run_end(Trainer& trainer) {
  log_pending(trainer, /*wait=*/true);
  log_new_metrics(trainer);
  finish(trainer, to_string(trainer.run().result().reason));
}

void TrackRun::on_evaluation_run_end(Trainer& trainer) {
  log_new_metrics(trainer);
  finish(trainer, to_string(trainer.run().result().reason));
}

void TrackRun::on_exception(Trainer& trainer, std::exception_ptr) {
  // A device that has failed, or that waits for a lost rank, does not send losses any more.
  const auto deadline = Clock::now() + kWaitAfterFailure;
  try {
    while (!pending_.empty() && Clock::now() < deadline) {
      log_pending(trainer, /*wait=*/false);
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
  } catch (const std::exception&) {  // NOLINT(bugprone-empty-catch): the run has already failed
  }
  finish(trainer, "failed");
}

void TrackRun::on_run_exit(Trainer&) {
  if (!before_evaluation_) return;
  std::tie(updates_before_, new_metrics_, records_of_last_update_) =
      *std::exchange(before_evaluation_, std::nullopt);
}

void TrackRun::finish(Trainer& trainer, std::string_view outcome) {
  const auto last = latest_metrics(trainer.run_history());
  for_each_tracker(trainer, [&](Tracker& tracker) {
    tracker.flush();
    tracker.finish(outcome, last);
  });
  for (Sink& sink : sinks_) sink.is_on = false;
  pending_.clear();
  is_on_ = false;
}

void TrackRun::for_each_tracker(Trainer& trainer, const std::function<void(Tracker&)>& work) {
  for (Sink& sink : sinks_) {
    if (sink.is_on) call(trainer, sink, work);
  }
}

void TrackRun::call(Trainer& trainer, Sink& sink, const std::function<void(Tracker&)>& work) {
  try {
    work(*sink.tracker);
  } catch (const std::exception&) {
    sink.is_on = false;
    sink.has_failed = true;
    trainer.log(LogLevel::error,
                c10::str("a tracker failed: ", message_of(std::current_exception()),
                         " The run continues without this tracker."));
  }
}

// Updates.

void TrackRun::on_train_epoch_start(Trainer& trainer) {
  const LossAverage& losses = trainer.run().train_loss_average();
  are_gradients_logged_ = trainer.run().micro_step() > 0;
  // A resumed epoch continues with the window of the saved state.
  if (trainer.run().micro_step() == 0) window_.reset();
  window_start_ = Clock::now();
  window_start_count_ = losses.count();
  num_open_evaluations_ = 0;
  is_in_epoch_ = true;
}

/// Does not use the epoch's sum, which stays NaN or infinite after such a loss.
void TrackRun::on_train_step_end(Trainer&, const Batch&, const StepOutput& output) {
  if (is_on_) window_.update(output.loss, output.batch_size);
}

void TrackRun::on_train_update_end(Trainer& trainer) {
  if (!is_on_) return;
  log_pending(trainer, /*wait=*/false);
  // An update that was skipped because of its gradients does not count.
  const bool is_new = update(trainer) != std::exchange(last_update_, update(trainer));
  if (is_new) forget_records_before(last_update_);
  if (is_new && last_update_ % options_.every_n_updates == 0) {
    pending_.push_back(make_record(trainer));
    log_pending(trainer, /*wait=*/false);
  }
  if (Clock::now() >= next_flush_) flush(trainer);
}

TrackRun::PendingRecord TrackRun::make_record(Trainer& trainer) {
  const LossAverage& losses = trainer.run().train_loss_average();
  const auto now = Clock::now();
  const double seconds = std::chrono::duration<double>(now - window_start_).count();
  const auto samples = static_cast<double>((losses.count() - window_start_count_) *
                                           trainer.accelerator().num_processes());
  PendingRecord record{.time = time(trainer),
                       .total = window_.total_async(),
                       .num_samples = window_.count(),
                       .others = learning_rates_};
  if (seconds > 0.0) record.others.push_back({"samples_per_second", samples / seconds});
  window_.reset();
  window_start_count_ = losses.count();
  window_start_ = now;
  return record;
}

std::vector<TrackedScalar> TrackRun::PendingRecord::scalars() const {
  const double loss = total.value() / static_cast<double>(num_samples);
  std::vector<TrackedScalar> all{{"train_loss", loss}};
  all.insert(all.end(), others.begin(), others.end());
  return all;
}

void TrackRun::log_pending(Trainer& trainer, bool wait) {
  while (!pending_.empty() && (wait || pending_.front().is_ready())) {
    log(trainer, pending_.front().scalars(), pending_.front().time);
    pending_.pop_front();
  }
}

void TrackRun::log_scalars(Trainer& trainer, const std::vector<TrackedScalar>& scalars) {
  log(trainer, scalars, time(trainer));
}

void TrackRun::log_text(Trainer& trainer, std::string_view name, std::string_view text) {
  if (!is_on_) return;
  for_each_tracker(trainer, [&](Tracker& tracker) { tracker.log_text(name, text, time(trainer)); });
}

void TrackRun::log(Trainer& trainer, const std::vector<TrackedScalar>& scalars,
                   const TrackedTime& time) {
  if (scalars.empty() || !is_on_) return;
  forget_records_before(time.update);
  for (const auto& [name, value] : scalars) records_of_last_update_.push_back({time, name, value});
  for_each_tracker(trainer, [&](Tracker& tracker) { tracker.log_scalars(scalars, time); });
}

void TrackRun::log_again(Trainer& trainer) {
  const auto records = std::exchange(records_of_last_update_, {});
  // Scalars that were recorded together have the same time.
  for (auto first = records.begin(); first != records.end();) {
    std::vector<TrackedScalar> scalars;
    const TrackedTime time = first->time;
    for (; first != records.end() && first->time.seconds == time.seconds; ++first) {
      if (first->value.isDouble()) {
        scalars.push_back({first->name, first->value.toDouble()});
      } else if (is_on_ && time.update >= update(trainer)) {
        log_histogram(trainer, first->name, first->value.toTensor(), time);
        records_of_last_update_.push_back(*first);
      }
    }
    if (time.update == update(trainer)) log(trainer, scalars, time);
  }
}

void TrackRun::forget_records_before(int64_t update) {
  std::erase_if(records_of_last_update_,
                [update](const Record& record) { return record.time.update < update; });
}

void TrackRun::flush(Trainer& trainer) {
  for_each_tracker(trainer, [](Tracker& tracker) { tracker.flush(); });
  next_flush_ = Clock::now() + std::chrono::duration_cast<Clock::duration>(
                                   std::chrono::duration<double>(options_.flush_seconds));
}

// Epochs.

void TrackRun::on_train_epoch_end(Trainer& trainer) {
  log_pending(trainer, /*wait=*/true);
  log_new_metrics(trainer);
  if (is_histogram_epoch(trainer)) log_histograms(trainer, /*of_gradients=*/false);
}

void TrackRun::on_eval_epoch_start(Trainer&) {
  if (num_open_evaluations_++ == 0) evaluation_start_ = Clock::now();
}

void TrackRun::on_eval_epoch_end(Trainer& trainer) {
  log_new_metrics(trainer);
  on_eval_epoch_interrupted(trainer);
}

/// The evaluation may be between two updates, and may contain other evaluations.
void TrackRun::on_eval_epoch_interrupted(Trainer&) {
  if (--num_open_evaluations_ == 0) window_start_ += Clock::now() - evaluation_start_;
}

void TrackRun::on_training_run_epoch_end(Trainer& trainer) {
  last_epoch_ = trainer.run_history().current_epoch();
  log_new_metrics(trainer);
  is_in_epoch_ = false;
  flush(trainer);
}

void TrackRun::log_new_metrics(Trainer& trainer) {
  std::vector<TrackedScalar> fresh;
  for (auto& [name, value] : new_metrics_.take(trainer.run_history())) {
    fresh.push_back({std::move(name), value});
  }
  log(trainer, fresh, time(trainer));
}

// Histograms.

bool TrackRun::is_histogram_epoch(Trainer& trainer) const {
  return options_.histograms_every_n_epochs &&
         trainer.run_history().current_epoch() % *options_.histograms_every_n_epochs == 0;
}

void TrackRun::on_gradients_ready(Trainer& trainer) {
  // At the end of the update, the scheduler has already set the rates of the next one.
  const bool is_due = (update(trainer) + 1) % options_.every_n_updates == 0;
  if (is_on_ && is_due) learning_rates_ = learning_rates(*trainer.optimizer());
  if (!is_histogram_epoch(trainer) || std::exchange(are_gradients_logged_, true)) return;
  trainer.accelerator().unscale_gradients(*trainer.optimizer());
  log_histograms(trainer, /*of_gradients=*/true);
}

void TrackRun::log_histograms(Trainer& trainer, bool of_gradients) {
  if (!is_on_) return;
  TrackedTime when = time(trainer);
  if (of_gradients) ++when.update;  // the update that they belong to
  for (const auto& [name, tensor] : trainer.model().named_tensors()) {
    if (!of_gradients && tensor.is_floating_point()) {
      log_histogram(trainer, "weights/" + name, tensor, when);
    } else if (of_gradients && tensor.is_leaf() && tensor.grad().defined()) {
      // A training state contains only dense tensors, and the device's memory is for training.
      const at::Tensor gradient = tensor.grad().to_dense().to(at::kCPU);
      log_histogram(trainer, "gradients/" + name, gradient, when);
      records_of_last_update_.push_back({when, "gradients/" + name, gradient.clone()});
    }
  }
}

void TrackRun::log_histogram(Trainer& trainer, const std::string& name, const at::Tensor& values,
                             const TrackedTime& time) {
  for_each_tracker(trainer, [&](Tracker& tracker) { tracker.log_histogram(name, values, time); });
}

// Time.

int64_t TrackRun::update(Trainer& trainer) const { return updates_before_ + trainer.num_updates(); }

TrackedTime TrackRun::time(Trainer& trainer) const {
  // After an epoch, the history already has the number of the next one.
  const int64_t epoch =
      is_in_epoch_ ? trainer.run_history().current_epoch() : std::max<int64_t>(1, last_epoch_);
  return {.update = update(trainer), .epoch = epoch, .seconds = seconds_since_1970()};
}

// State.

StateDict TrackRun::state_dict() const {
  std::vector<Record> records;
  std::copy_if(records_of_last_update_.begin(), records_of_last_update_.end(),
               std::back_inserter(records),
               [this](const Record& record) { return record.time.update >= last_update_; });
  for (const PendingRecord& pending : pending_) {
    if (pending.time.update != last_update_) continue;
    for (const auto& [name, value] : pending.scalars()) {
      records.push_back({pending.time, name, value});
    }
  }
  c10::impl::GenericList list(c10::AnyType::get());
  for (const auto& [time, name, value] : records) {
    list.push_back(StateDict{
        {"update", time.update},
        {"epoch", time.epoch},
        {"seconds", time.seconds},
        {"name", name},
        {"value",
         value}}.to_ivalue());
  }
  StateDict state;
  state.set("num_logged", new_metrics_.state_dict());
  state.set("records_of_last_update", list);
  state.set("updates_before", updates_before_);
  state.set("window_loss", window_.total());
  state.set("window_samples", window_.count());
  state.set("places", places());
  return state;
}

namespace {

/// Returns "linkboy::CsvTracker 2" for the third tracker of that class. The class is part of the
/// key because the list may differ when the run continues.
std::string next_key(const Tracker& tracker, std::map<std::string, int>& counts) {
  const std::string name = c10::demangle(typeid(tracker).name());
  return fmt::format("{} {}", name, counts[name]++);
}

}  // namespace

StateDict TrackRun::places() const {
  StateDict places;
  std::map<std::string, int> counts;
  for (const Sink& sink : sinks_) {
    const std::string key = next_key(*sink.tracker, counts);
    if (!sink.place.empty()) places.set(key, sink.place);
  }
  return places;
}

void TrackRun::load_places(const StateDict& places) {
  std::map<std::string, int> counts;
  for (Sink& sink : sinks_) {
    const std::string key = next_key(*sink.tracker, counts);
    sink.place = places.contains(key) ? places.get_string(key) : "";
  }
}

namespace {

c10::IValue value_of(const StateDict& record) {
  if (record.at("value").isTensor()) return record.get_tensor("value");
  return record.get_double("value");
}

}  // namespace

void TrackRun::load_state_dict(const StateDict& state) {
  new_metrics_.load_state_dict(state.get_dict("num_logged"));
  records_of_last_update_.clear();
  for (const c10::IValue& value : state.get_list("records_of_last_update")) {
    const StateDict record = StateDict::from_ivalue(value, "a record of TrackRun");
    records_of_last_update_.push_back({{.update = record.get_int("update"),
                                        .epoch = record.get_int("epoch"),
                                        .seconds = record.get_double("seconds")},
                                       record.get_string("name"),
                                       value_of(record)});
  }
  updates_before_ = state.get_int("updates_before");
  window_.restore(state.get_double("window_loss"), state.get_int("window_samples"));
  load_places(state.get_dict("places"));
}

}  // namespace linkboy
