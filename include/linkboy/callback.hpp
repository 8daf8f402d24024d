#pragma once

#include <c10/util/ArrayRef.h>
#include <c10/util/SmallVector.h>

#include <any>
#include <exception>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "linkboy/checkpoint/state_dict.hpp"
#include "linkboy/export.hpp"
#include "linkboy/util/make.hpp"  // IWYU pragma: export
#include "linkboy/util/text_options.hpp"

namespace linkboy {

class Batch;
class StopTraining;
class Trainer;
struct Prediction;
struct StepOutput;

/// Base class of objects that observe or control a run. Override the events that you need;
/// `docs/the_loop.md` shows their order. Each event comes directly after the Trainer method of the
/// same name.
///
/// The thread that runs the Trainer calls the events. An exception ends the run: StopTraining ends
/// it in an orderly way, and any other exception reaches the caller after `on_exception`. If a
/// callback throws StopTraining, the remaining callbacks still receive the event, because they may
/// make collective calls or save a training state. StopTraining during a run's set-up ends the run
/// at its start; in the events at the end of a run, it has no effect.
class LINKBOY_API Callback {
 public:
  virtual ~Callback() = default;

  /// The order in which callbacks receive each event, from first to last. Callbacks of the same
  /// phase are called in list order.
  enum class Phase {
    first,     ///< before all others, for example FastDevRun, which removes some callbacks
    measure,   ///< computes metrics of the model's outputs, for example MetricCallback
    average,   ///< changes weights whose metrics others monitor, for example ModelEma
    record,    ///< records values that others print, for example MemoryMonitor
    act,       ///< all others
    evaluate,  ///< evaluates after an update, for example StepBasedEvaluation
    track,     ///< reads the recorded values, for example TrackRun
    save,      ///< saves the results of the others, for example SaveTrainingState
    profile,   ///< measures the work of the others, for example Profiler
    observe,   ///< also measures the Profiler's work, for example PerformanceMonitor
    last,      ///< after all others, for example StopOnSignal
  };

  /// The phase of the callback: `act`, unless the class has another default or `set_phase` was
  /// called.
  Phase phase() const { return phase_.value_or(default_phase()); }
  /// Sets the phase. Takes effect when the callback is added to a Trainer.
  void set_phase(Phase phase) { phase_ = phase; }

  /// Returns the name that identifies the callback and its state in a Trainer. It defaults to the
  /// name of the class, such as "linkboy::TimeLimit", unless `set_name` or the class sets another
  /// one.
  std::string name() const { return name_.value_or(default_name()); }
  /// Sets the name, so that a Trainer can have several callbacks of one class. Call it before you
  /// add the callback to a Trainer, and use the same name in a run that resumes.
  /// @throws Error if `name` is empty, or if the callback was already added to a Trainer.
  void set_name(std::string name);

  /// Whether the callback writes files that remain after the run, such as checkpoints and logs.
  /// FastDevRun removes such callbacks.
  virtual bool writes_files() const { return false; }

  /// Whether the callback calls `Trainer::save_training_state` between an epoch's last update and
  /// the epoch's end (in `on_train_epoch_end`, in the epoch's evaluation, or in
  /// `on_stop_training_error`). If it does, the Trainer captures the training state at each epoch's
  /// last update, and therefore calls `state_dict` of all callbacks there.
  virtual bool saves_training_states() const { return false; }

  /// Called once, before the Trainer's first run with this callback. If the callback is added for
  /// one run only (`TrainOptions::callbacks`), called before that run. The Trainer is fully
  /// constructed, and no part of a run exists.
  virtual void on_init_end(Trainer&) {}

  /// Called when the loaders of a run exist and nothing depends on their lengths yet. Replace them
  /// here (`Trainer::set_train_dataloader`, `Trainer::evaluation_sets`).
  virtual void on_dataloaders_ready(Trainer&) {}

  /// Called before a training run reads its training state and before it writes anything. Here you
  /// can lock files that no other run may change, and throw if another run has locked them. Release
  /// the locks in `on_run_exit`.
  virtual void on_training_run_claim(Trainer&) {}

  /// Called when the run is set up: the loaders, the run configuration and the scheduler exist, and
  /// the training state of a resumed run has been restored.
  virtual void on_training_run_start(Trainer&) {}
  /// Called at the start of an epoch. The model is in training mode, and no batch has been read.
  virtual void on_train_epoch_start(Trainer&) {}
  /// Called before the forward pass of each micro-step.
  virtual void on_train_step_start(Trainer&) {}
  /// Called after the forward pass and before the backward pass.
  virtual void on_train_step_end(Trainer&, const Batch&, const StepOutput&) {}
  /// Called once per update, between the last backward pass and clipping. The gradients are
  /// complete and averaged over the processes. In fp16 they are scaled until
  /// `Accelerator::unscale_gradients`.
  virtual void on_gradients_ready(Trainer&) {}
  /// Called after each update: clipping, optimizer step, scheduler step and clearing of the
  /// gradients. Use it for work that is due every n updates, and to save training states within an
  /// epoch.
  virtual void on_train_update_end(Trainer&) {}
  /// Called when the epoch's mean loss is in the run history and the evaluation has not begun.
  virtual void on_train_epoch_end(Trainer&) {}

  /// Called once for each evaluation set, in a training run and in an evaluation run. The model is
  /// in evaluation mode.
  virtual void on_eval_epoch_start(Trainer&) {}
  /// Called before the forward pass of each evaluation batch.
  virtual void on_eval_step_start(Trainer&) {}
  /// Called after the forward pass of each evaluation batch.
  virtual void on_eval_step_end(Trainer&, const Batch&, const StepOutput&) {}
  /// Called when the mean loss of the set is in the run history.
  virtual void on_eval_epoch_end(Trainer&) {}
  /// Called when an exception, which may be StopTraining, leaves the evaluation of the set, for
  /// each callback that has received `on_eval_epoch_start` and has not completed
  /// `on_eval_epoch_end`. The run continues if the caller of `Trainer::evaluate_now` catches the
  /// exception. Exceptions that are thrown here are dropped.
  virtual void on_eval_epoch_interrupted(Trainer&) {}

  /// Called at the end of an epoch, after its training, its evaluation and the scheduler's
  /// `epoch_end`.
  virtual void on_training_run_epoch_end(Trainer&) {}
  /// Called when the run has ended, early or not; `Run::result` contains the reason. Not called
  /// after an exception.
  virtual void on_training_run_end(Trainer&) {}

  /// Called when `Trainer::evaluate` begins; its loader exists.
  virtual void on_evaluation_run_start(Trainer&) {}
  /// Called when `Trainer::evaluate` ends, early or not. Not called after an exception.
  virtual void on_evaluation_run_end(Trainer&) {}

  /// Called when `Trainer::predict` begins.
  virtual void on_prediction_run_start(Trainer&) {}
  /// Called before the forward pass of each batch.
  virtual void on_prediction_step_start(Trainer&) {}
  /// Called after the forward pass of each batch.
  virtual void on_prediction_step_end(Trainer&, const Batch&, const Prediction&) {}
  /// Called when the prediction ends: after the last batch or, unless it is part of another run,
  /// early after a stop request.
  virtual void on_prediction_run_end(Trainer&) {}

  /// Called when the run ends early because StopTraining was thrown or `request_stop` was called.
  virtual void on_stop_training_error(Trainer&, const StopTraining&) {}

  /// Called when any other exception ends the run. All callbacks receive it; exceptions that they
  /// throw here are dropped.
  virtual void on_exception(Trainer&, std::exception_ptr) {}

  /// Called as the last event of each call of `train`, `evaluate` and `predict`, however it ends:
  /// after the run's end or `on_exception`. It is not called for a `predict` within a run, which is
  /// part of that run, nor for a call whose options are rejected before it begins. Release here
  /// everything that the run has acquired. All callbacks receive it; after an exception, exceptions
  /// that they throw here are dropped.
  virtual void on_run_exit(Trainer&) {}

  /// Returns the state that a resumed run needs; empty by default. In a resumed run, all processes
  /// get rank 0's state. Called when a training state is saved, and at each epoch's last update if
  /// a callback `saves_training_states()`.
  [[nodiscard]] virtual StateDict state_dict() const { return {}; }
  /// Returns the part of the state that describes files which the callback replaces or removes,
  /// such as the names of the checkpoints that it keeps; empty by default. It is saved together
  /// with `state_dict`, and its entries replace those of the same name. If `max_num_updates` ends a
  /// run within an epoch, a training state contains the values that `state_dict` returned before
  /// the run's end, because a longer run trains the rest of the epoch, but the present values of
  /// this part.
  [[nodiscard]] virtual StateDict file_state_dict() const { return {}; }
  /// Restores the entries that `state_dict` and `file_state_dict` of the same class returned. In a
  /// resumed run, called before `on_training_run_start`.
  virtual void load_state_dict(const StateDict&) {}

  /// Returns the part of the state that differs between processes, such as sums over a process's
  /// own batches. In a resumed run, each process gets its own part back; with a different number of
  /// processes, this part is not loaded.
  [[nodiscard]] virtual StateDict rank_state_dict() const { return {}; }
  /// Restores the part that `rank_state_dict` of the same class returned on this process. Called
  /// after `load_state_dict`, and only if the part was not empty.
  virtual void load_rank_state_dict(const StateDict&) {}

  /// Handles an event that `Trainer::call_event(name, payload)` fires. Unknown names are ignored.
  void handle_event(std::string_view name, Trainer& trainer, const std::any& payload);

 protected:
  /// Whether the run in progress resumed from a training state that contains a state of this
  /// callback.
  bool is_resumed() const { return is_resumed_; }

  /// Returns the default of `name`. If you rename a class, override this method to return the old
  /// name, so that saved states still load.
  virtual std::string default_name() const;

  /// Returns the default of `phase`. Override it for a class that must be called earlier or later
  /// than others.
  virtual Phase default_phase() const { return Phase::act; }

  /// Handler of a custom event. It receives the payload of `Trainer::call_event`, whose type it
  /// must know.
  using EventHandler = std::function<void(Trainer&, const std::any& payload)>;

  /// Subscribes to a custom event; a later call for the same name replaces the handler.
  void on_event(std::string name, EventHandler handler);

 private:
  friend class CallbackHandler;

  bool is_resumed_ = false;
  bool is_given_ = false;  // whether a Trainer has it
  std::optional<Phase> phase_;
  std::optional<std::string> name_;
  std::map<std::string, EventHandler, std::less<>> event_handlers_;
};

/// Lists the events of Callback, in the order of their declarations, as
/// X(NAME, RANKS, PARAMETERS, ARGUMENTS). RANKS is `together` if all processes call the event at
/// the same place of a run, so that they can leave the run after it, and otherwise `alone`.
// clang-format off
#define LINKBOY_FOR_EACH_EVENT(X)                                                                 \
  X(init_end, alone, (Trainer& trainer), (trainer))                                               \
  X(dataloaders_ready, alone, (Trainer& trainer), (trainer))                                      \
  X(training_run_claim, alone, (Trainer& trainer), (trainer))                                     \
  X(training_run_start, together, (Trainer& trainer), (trainer))                                  \
  X(train_epoch_start, together, (Trainer& trainer), (trainer))                                   \
  X(train_step_start, alone, (Trainer& trainer), (trainer))                                       \
  X(train_step_end, alone, (Trainer& trainer, const Batch& batch, const StepOutput& output),      \
    (trainer, batch, output))                                                                     \
  X(gradients_ready, alone, (Trainer& trainer), (trainer))                                        \
  X(train_update_end, alone, (Trainer& trainer), (trainer))                                       \
  X(train_epoch_end, together, (Trainer& trainer), (trainer))                                     \
  X(eval_epoch_start, together, (Trainer& trainer), (trainer))                                    \
  X(eval_step_start, alone, (Trainer& trainer), (trainer))                                        \
  X(eval_step_end, alone, (Trainer& trainer, const Batch& batch, const StepOutput& output),       \
    (trainer, batch, output))                                                                     \
  X(eval_epoch_end, together, (Trainer& trainer), (trainer))                                      \
  X(eval_epoch_interrupted, alone, (Trainer& trainer), (trainer))                                 \
  X(training_run_epoch_end, together, (Trainer& trainer), (trainer))                              \
  X(training_run_end, alone, (Trainer& trainer), (trainer))                                       \
  X(evaluation_run_start, together, (Trainer& trainer), (trainer))                                \
  X(evaluation_run_end, alone, (Trainer& trainer), (trainer))                                     \
  X(prediction_run_start, together, (Trainer& trainer), (trainer))                                \
  X(prediction_step_start, alone, (Trainer& trainer), (trainer))                                  \
  X(prediction_step_end, alone,                                                                   \
    (Trainer& trainer, const Batch& batch, const Prediction& prediction),                         \
    (trainer, batch, prediction))                                                                 \
  X(prediction_run_end, alone, (Trainer& trainer), (trainer))                                     \
  X(stop_training_error, alone, (Trainer& trainer, const StopTraining& stop), (trainer, stop))    \
  X(exception, alone, (Trainer& trainer, std::exception_ptr exception), (trainer, exception))     \
  X(run_exit, alone, (Trainer& trainer), (trainer))
// clang-format on

/// The events, without "on_".
enum class Event {
/// Lists the name of an event.
#define LINKBOY_ENUMERATOR(name, ranks, parameters, arguments) name,
  LINKBOY_FOR_EACH_EVENT(LINKBOY_ENUMERATOR)
#undef LINKBOY_ENUMERATOR
};

/// What `Trainer::fire` must know of an event.
template <Event event>
struct EventTraits;

/// Defines the traits of an event.
#define LINKBOY_EVENT_TRAITS(name, ranks, parameters, arguments)  \
  template <>                                                     \
  struct EventTraits<Event::name> {                               \
    enum Ranks { together, alone };                               \
    static constexpr bool is_called_together = ranks == together; \
    static constexpr auto method = &Callback::on_##name;          \
  };
LINKBOY_FOR_EACH_EVENT(LINKBOY_EVENT_TRAITS)
#undef LINKBOY_EVENT_TRAITS

/// Callbacks in the order in which they are called.
using CallbackList = std::vector<std::shared_ptr<Callback>>;

/// Calls the callbacks, ordered by `Callback::phase` and then by their order in the list.
class LINKBOY_API CallbackHandler {
 public:
  /// Constructs a handler without callbacks.
  CallbackHandler() = default;
  /// Constructs a handler with these callbacks.
  /// @throws OptionError under the same conditions as `add`.
  explicit CallbackHandler(CallbackList callbacks);

  /// Adds a callback after the others of its phase.
  /// @throws OptionError if `callback` is null or its name is already taken; the message lists the
  ///         callbacks.
  void add(std::shared_ptr<Callback> callback);
  /// Removes all callbacks.
  void clear() { callbacks_.clear(); }

  /// Removes the callbacks for which `is_unwanted` returns true, and returns their names.
  std::vector<std::string> remove_if(const std::function<bool(const Callback&)>& is_unwanted);

  /// The callbacks, in the order of calls.
  const CallbackList& callbacks() const { return callbacks_; }
  /// The names of the callbacks, in the order of calls.
  std::vector<std::string> names() const;

  /// Returns the first callback of type C (or derived from it), or null.
  template <class C>
  std::shared_ptr<C> find() const {
    for (const auto& callback : callbacks_) {
      if (auto found = std::dynamic_pointer_cast<C>(callback)) return found;
    }
    return nullptr;
  }

  /// Calls `function` with each callback, in the order of calls. During the loop, a callback may
  /// add callbacks and remove any callback, including itself. Later in the order, added callbacks
  /// are called and removed ones are not; callbacks earlier in the order are not called again.
  template <class Function>
  void for_each(const Function& function) const {
    c10::SmallVector<const Callback*, 16> called;
    for (std::size_t i = 0; i < callbacks_.size();) {
      const std::shared_ptr<Callback> present = callbacks_[i];  // may remove itself
      called.push_back(present.get());
      function(*present);
      const bool is_in_place = i < callbacks_.size() && callbacks_[i] == present;
      i = is_in_place ? i + 1 : index_behind(called, present->phase());
    }
  }

  /// Calls an event on each callback, in the order of `for_each`:
  /// `call(&Callback::on_train_step_start, trainer)`.
  template <class... Parameters, class... Arguments>
  void call(void (Callback::*event)(Parameters...), Arguments&&... arguments) const {
    for_each([&](Callback& callback) { (callback.*event)(arguments...); });
  }

  /// Marks the start of a run: until a state is loaded, `is_resumed` is false for all callbacks.
  void begin_run();
  /// Passes each callback its part of a training state, by name. Skips callbacks without a part.
  /// @return The names of the non-empty parts that belong to no callback.
  std::vector<std::string> load_state_dicts(const StateDict& states);
  /// Passes each callback its part with `Callback::load_rank_state_dict`.
  void load_rank_state_dicts(const StateDict& states);

  /// Marks one of the callbacks as initialized. Returns false if it was already; otherwise its
  /// `on_init_end` must be called.
  bool try_mark_initialized(const Callback& callback);

  /// Calls `Callback::handle_event` of each callback.
  void call_event(std::string_view name, Trainer& trainer, const std::any& payload) const;

  /// Calls `Callback::on_exception` of every callback and drops the exceptions that they throw.
  void call_exception(Trainer& trainer, std::exception_ptr exception) const noexcept;
  /// Calls `Callback::on_run_exit` of every callback.
  /// @return The first exception that one of them threw, or null.
  std::exception_ptr call_run_exit(Trainer& trainer) const noexcept;

 private:
  /// Returns the index of the next callback to call after those in `called`, the last of which had
  /// `phase`.
  std::size_t index_behind(c10::ArrayRef<const Callback*> called, Callback::Phase phase) const;

  CallbackList callbacks_;
  std::set<std::weak_ptr<Callback>, std::owner_less<>> initialized_;
};

}  // namespace linkboy
