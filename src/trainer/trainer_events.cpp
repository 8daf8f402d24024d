// How Trainer calls its callbacks, and how a run is left.

#include <c10/util/ScopeExit.h>

#include <algorithm>
#include <array>

#include "accelerator/accelerator_implementation.hpp"
#include "distributed/process_group_implementation.hpp"
#include "distributed/run_group_scope.hpp"
#include "linkboy/error.hpp"
#include "trainer/run_progress.hpp"
#include "trainer/stop_control.hpp"
#include "trainer/trainer_implementation.hpp"

namespace linkboy {
namespace {

/// The others are those of steps, which agree at the update or the batch, and of a run's end. (GCC
/// and Clang compare the places of virtual functions.)
bool is_called_by_all_ranks(void (Callback::*event)(Trainer&)) {
  using Event = void (Callback::*)(Trainer&);
  static constexpr std::array<Event, 8> kEvents{
      &Callback::on_training_run_start,   &Callback::on_train_epoch_start,
      &Callback::on_train_epoch_end,      &Callback::on_training_run_epoch_end,
      &Callback::on_evaluation_run_start, &Callback::on_eval_epoch_start,
      &Callback::on_eval_epoch_end,       &Callback::on_prediction_run_start};
  return std::find(kEvents.begin(), kEvents.end(), event) != kEvents.end();
}

/// Callbacks that belong to the handler while this lives.
class CallbacksOfRun {
 public:
  CallbacksOfRun(CallbackHandler& handler, const CallbackList& callbacks) : handler_(handler) {
    try {
      for (const auto& callback : callbacks) {
        handler.add(callback);
        added_.push_back(callback);
      }
    } catch (...) {
      remove();
      throw;
    }
  }
  ~CallbacksOfRun() { remove(); }
  CallbacksOfRun(const CallbacksOfRun&) = delete;
  CallbacksOfRun& operator=(const CallbacksOfRun&) = delete;

  bool contain(const Callback& callback) const {
    return std::any_of(added_.begin(), added_.end(),
                       [&](const auto& added) { return added.get() == &callback; });
  }

 private:
  void remove() {
    handler_.remove_if([this](const Callback& callback) { return contain(callback); });
  }

  CallbackHandler& handler_;
  CallbackList added_;
};

}  // namespace

/// Calls every callback, although one throws StopTraining: a training state that is saved then
/// holds the whole event, and collective calls of later callbacks find the other ranks. Returns
/// what was thrown first.
std::optional<StopTraining> Trainer::Implementation::call_all(
    c10::function_ref<void(Callback&)> call) {
  std::optional<StopTraining> first;
  callback_handler_.for_each([&](Callback& callback) {
    if (first && ends_epoch_again()) return;
    is_cut_short_ = false;
    try {
      call(callback);
    } catch (const StopTraining& stop) {
      if (!first) first = stop;
    }
  });
  return first;
}

/// All ranks have left an evaluation here, and a resumed run ends this epoch again.
bool Trainer::Implementation::ends_epoch_again() const {
  return is_cut_short_ && progress_.is_ending_epoch();
}

std::optional<StopTraining> Trainer::Implementation::call_all(void (Callback::*event)(Trainer&)) {
  return call_all([&](Callback& callback) { (callback.*event)(trainer_); });
}

/// Nothing is there yet that could be left: the run ends at its start.
void Trainer::Implementation::call_in_set_up(c10::function_ref<void(Callback&)> call) {
  if (const auto stop = call_all(call)) stop_.request(stop->reason(), stop->what());
}

void Trainer::Implementation::call_in_set_up(void (Callback::*event)(Trainer&)) {
  call_in_set_up([&](Callback& callback) { (callback.*event)(trainer_); });
}

/// With several processes a StopTraining is kept until all can leave; the others would wait for
/// this one forever.
void Trainer::call_callbacks(c10::function_ref<void(Callback&)> call) {
  const auto stop = impl_->call_all(call);
  if (!stop) return;
  if (!impl_->stop_.is_shared() || impl_->ends_epoch_again()) throw StopTraining(*stop);
  impl_->stop_.defer(*stop, impl_->progress_.is_in_window());
}

/// Where all ranks call an event, they leave together if a callback of one of them has thrown;
/// after an update, if they have agreed on it during the backward pass.
void Trainer::agree_after(void (Callback::*event)(Trainer&)) {
  if (is_called_by_all_ranks(event)) impl_->stop_.sync_deferred();
  if (event == &Callback::on_train_update_end) impl_->stop_.throw_if_agreed();
}

void Trainer::call_event(std::string_view name, const std::any& payload) {
  impl_->callback_handler_.call_event(name, *this, payload);
}

// Leaving a run.

void Trainer::Implementation::guarded(const CallbackList& callbacks_of_run,
                                      c10::function_ref<void()> run) {
  LINKBOY_CHECK(
      !is_running_,
      "train or evaluate was called while this Trainer is in a run; a Trainer has one run "
      "at a time. Call evaluate_now in a callback to evaluate in the middle of a run, or "
      "wait until the run has ended.");
  is_running_ = true;
  const auto done = c10::make_scope_exit([this] {
    is_running_ = false;
    claim_.reset();
    drop_window();
  });
  const CallbacksOfRun added(callback_handler_, callbacks_of_run);
  try {
    const bool is_first_run = callback_handler_.take_init_end();
    call_in_set_up([&](Callback& callback) {
      if (is_first_run || added.contain(callback)) callback.on_init_end(trainer_);
    });
    const RunGroupScope group(trainer_.accelerator().process_group());
    tell_failure(accelerator_->process_group(), nullptr);
    run();
  } catch (...) {
    claim_.reset();
    if (accelerator_) tell_failure(accelerator_->process_group(), std::current_exception());
    leave_what_is_half_done();
    stop_.clear();
    log_exception(std::current_exception());
    callback_handler_.call_exception(trainer_, std::current_exception());
    settle_after_failure();
    callback_handler_.call_run_exit(trainer_);
    throw;
  }
  stop_.clear();
  if (const auto thrown = callback_handler_.call_run_exit(trainer_)) std::rethrow_exception(thrown);
}

/// Without a logger the program tells it, which gets the exception.
void Trainer::Implementation::log_exception(const std::exception_ptr& exception) noexcept {
  if (!accelerator_ || !accelerator_->logger()) return;
  try {
    accelerator_->log(LogLevel::error, "The run has failed: " + message_of(exception), {});
  } catch (...) {  // NOLINT(bugprone-empty-catch): the first exception is the one that counts
  }
}

/// Not in the next run: the program may set learning rates before.
void Trainer::Implementation::settle_after_failure() noexcept {
  try {
    settle_update();
  } catch (...) {  // of the device, or of an overridden step: what ended the run is told already
    open_update_.reset();
    for (RegisteredOptimizer& registered : registered_optimizers_) registered.open_step.reset();
  }
}

/// A run that is left inside an accumulation window keeps neither its batches nor, for a loop with
/// the Accelerator alone, the promise that the loop updates the scale.
void Trainer::Implementation::drop_window() {
  batches_of_window_.clear();
  loss_of_window_.reset();
  if (accelerator_) accelerator_->impl_->is_scale_updated_by_loop_ = false;
}

void Trainer::Implementation::until_stopped(c10::function_ref<void()> run) {
  try {
    run();
  } catch (const StopTraining& stop) {
    end_run_early(stop);
  }
  result_.num_epochs = progress_.num_epochs();
  result_.num_updates = trainer_.num_updates();
}

void Trainer::Implementation::end_run_early(const StopTraining& stop) {
  LINKBOY_CHECK(stop_.is_agreed(), "a step of the Trainer threw StopTraining (", stop.what(),
                ") in a run of several processes, where the others would wait for this one. Call "
                "request_stop in the step, or throw it in a callback; all processes follow these.");
  result_.reason = stop.reason();
  result_.message = stop.what();
  call_all([&](Callback& callback) { callback.on_stop_training_error(trainer_, stop); });
  leave_what_is_half_done();
  trainer_.print(result_.message);
}

/// Neither a later run nor a training state gets to see it.
void Trainer::Implementation::leave_what_is_half_done() {
  if (progress_.leave()) zero_gradients();
  // Callbacks may exchange the weights at the run's end.
  after_last_update_.reset();
}

void Trainer::request_stop(StopReason reason) noexcept { impl_->stop_.request(reason); }

void Trainer::request_stop(StopReason reason, std::string message) {
  impl_->stop_.request(reason, std::move(message));
}

bool Trainer::stop_requested() const { return impl_->stop_.is_requested(); }

std::optional<StopReason> Trainer::requested_stop() const { return impl_->stop_.reason(); }

}  // namespace linkboy
