// The ways into and out of a run.

#include <c10/util/ScopeExit.h>

#include <algorithm>

#include "distributed/current_group_scope.hpp"
#include "distributed/process_group_implementation.hpp"
#include "linkboy/error.hpp"
#include "trainer/trainer_implementation.hpp"

namespace linkboy {
namespace {

/// Adds callbacks to the handler for the lifetime of this object.
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

/// Logs only if there is a logger. Otherwise the caller, which gets the exception, must report it.
void log_exception(const Accelerator& accelerator, const std::exception_ptr& exception) noexcept {
  if (!accelerator.logger()) return;
  try {
    accelerator.log(LogLevel::error, "The run has failed: " + message_of(exception), {});
  } catch (...) {  // NOLINT(bugprone-empty-catch): the first exception is the one that counts
  }
}

}  // namespace

/// No loop has begun that could be left yet, so a stop request ends the run at its start.
void Trainer::Implementation::call_in_set_up(c10::function_ref<void(Callback&)> call) {
  if (const auto stop = call_all(call)) stop_.request(stop->reason(), stop->what());
}

void Trainer::call_event(std::string_view name, const std::any& payload) {
  impl_->callback_handler_.call_event(name, *this, payload);
}

// Leaving a run.

void Trainer::Implementation::run_with_callbacks(const CallbackList& callbacks_of_run,
                                                 c10::function_ref<void()> run) {
  LINKBOY_CHECK(!call_,
                "train or evaluate was called while this Trainer is in a run; a Trainer can have "
                "only one run at a time. To evaluate during a run, call evaluate_now in a "
                "callback. Otherwise wait until the run has ended.");
  call_.emplace();
  const auto done = c10::make_scope_exit([this] {
    call_.reset();
    run_->window.clear();  // a run that is left inside a window must not keep its batches
  });
  const CallbacksOfRun added(callback_handler_, callbacks_of_run);
  try {
    call_in_set_up([&](Callback& callback) {
      if (added.contain(callback) || callback_handler_.try_mark_initialized(callback)) {
        callback.on_init_end(trainer_);
      }
    });
    const CurrentGroupScope group(accelerator_->process_group());
    tell_failure(accelerator_->world(), nullptr);
    run();
  } catch (...) {
    call_->claim.reset();
    tell_failure(accelerator_->world(), std::current_exception());
    drop_unfinished_update();
    stop_.clear();
    log_exception(*accelerator_, std::current_exception());
    callback_handler_.call_exception(trainer_, std::current_exception());
    // The program may set learning rates before the next run.
    try {
      settle_update();
    } catch (...) {  // the error that ended the run is reported already
      for (TrainedOptimizer* trained : optimizers_.all()) trained->forget_step();
    }
    callback_handler_.call_run_exit(trainer_);
    throw;
  }
  stop_.clear();
  if (const auto thrown = callback_handler_.call_run_exit(trainer_)) std::rethrow_exception(thrown);
}

void Trainer::Implementation::run_until_stop(c10::function_ref<void()> run) {
  try {
    run();
  } catch (const StopTraining& stop) {
    LINKBOY_CHECK(stop_.is_agreed(), "a step of the Trainer threw StopTraining (", stop.what(),
                  ") in a run of several processes, and the others would wait for this one. Call "
                  "request_stop in the step, or throw StopTraining in a callback; then all "
                  "processes stop.");
    run_->result.reason = stop.reason();
    run_->result.message = stop.what();
    call_all([&](Callback& callback) { callback.on_stop_training_error(trainer_, stop); });
    drop_unfinished_update();
    stop_.spend();
    trainer_.print(run_->result.message);
  }
  run_->result.num_epochs = run_->progress.num_completed_epochs();
  run_->result.num_updates = trainer_.num_updates();
}

/// Calls the last steps of a run. Its loop has ended, so a StopTraining has no effect.
void Trainer::Implementation::end_run(void (Trainer::*method)(),
                                      void (Callback::*event)(Trainer&)) {
  try {
    (trainer_.*method)();
  } catch (const StopTraining&) {  // NOLINT(bugprone-empty-catch)
  }
  call_all([&](Callback& callback) { (callback.*event)(trainer_); });
}

/// Drops everything unfinished, so that neither a later run nor a training state contains it.
void Trainer::Implementation::drop_unfinished_update() {
  if (run_->progress.leave()) abandon_update();
  if (!run_->progress.is_epoch_cut_short()) run_->after_last_update.reset();
}

/// Forgets an update that this process has left; the others may not be there.
void Trainer::Implementation::abandon_update() {
  trainer_.Trainer::optimizer_zero_grad();  // an override may keep them
  if (GradScaler* scaler = accelerator_->grad_scaler()) scaler->forget();
}

void Trainer::request_stop(StopReason reason) noexcept { impl_->stop_.request(reason); }

void Trainer::request_stop(StopReason reason, std::string message) {
  impl_->stop_.request(reason, std::move(message));
}

bool Trainer::stop_requested() const { return impl_->stop_.is_requested(); }

std::optional<StopReason> Trainer::requested_stop() const { return impl_->stop_.reason(); }

}  // namespace linkboy
