#pragma once

#include <c10/util/ArrayRef.h>
#include <c10/util/SmallVector.h>

#include <any>
#include <exception>
#include <functional>
#include <map>
#include <memory>
#include <optional>
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

/// Something that watches or steers a run. Override the events of interest; `docs/events.md` shows
/// their order. Each event comes right after the Trainer method of the same name.
///
/// Called by the thread that runs the Trainer. An exception leaves the run: StopTraining ends it
/// in order, any other one reaches the caller after `on_exception`. The callbacks after one that
/// throws StopTraining are called for the same event all the same: they may be collective, or a
/// training state may be saved. While a run is set up, StopTraining ends it at its start; in
/// the events of its end it changes nothing.
class LINKBOY_API Callback {
 public:
  virtual ~Callback() = default;

  /// When a callback has its turn in each event, from first to last. Callbacks of one phase are
  /// called in the order of the list.
  enum class Phase {
    first,     ///< before all others begin: FastDevRun, which takes some out
    measure,   ///< computes metrics of the model's outputs: MetricCallback
    average,   ///< changes weights, whose metrics others monitor: ModelEma
    record,    ///< records what others print: MemoryMonitor
    act,       ///< all others
    evaluate,  ///< evaluates in between, after an update was taken in: StepBasedEvaluation
    track,     ///< reads what the others have recorded: TrackRun
    save,      ///< saves what the others have done: SaveTrainingState
    profile,   ///< counts the work of the others: Profiler
    observe,   ///< counts the Profiler's, too: PerformanceMonitor
    last,      ///< after all others: StopOnSignal
  };

  /// `act`, unless the class has another one or `set_phase` was called.
  Phase phase() const { return phase_.value_or(default_phase()); }
  /// Takes effect when the callback is given to a Trainer.
  void set_phase(Phase phase) { phase_ = phase; }

  /// Returns the name under which a Trainer has this callback and its state: that of its class, as
  /// "linkboy::TimeLimit", unless `set_name` or the class gave it another one.
  std::string name() const { return name_.value_or(default_name()); }
  /// Returns names under which earlier versions saved the state of this class. One of them is read
  /// if there is no state under `name()` and the callback was not given another name.
  virtual std::vector<std::string> former_names() const { return {}; }
  /// Gives the callback a name of its own, so that a Trainer can have several of one class. Call it
  /// before the callback is given to a Trainer, and with the same name in a run that resumes.
  /// @throws Error if `name` is empty, or the callback was given to a Trainer.
  void set_name(std::string name);

  /// Whether it writes files that stay: checkpoints, logs. FastDevRun leaves such callbacks out.
  virtual bool writes_files() const { return false; }

  /// Whether it calls `Trainer::save_training_state` between an epoch's last update and the epoch's
  /// end (in `on_train_epoch_end`, in the epoch's evaluation, or in `on_stop_training_error`). The
  /// Trainer then keeps, at each epoch's last update, what the state of that update needs:
  /// `state_dict` of all callbacks is called there as well.
  virtual bool saves_training_states() const { return false; }

  /// Once, before the first run of a Trainer: the Trainer is whole, and nothing of a run exists.
  virtual void on_init_end(Trainer&) {}

  /// The loaders of a run exist, and nothing depends on their lengths yet: the place to replace
  /// them (`Trainer::set_train_dataloader`, `Trainer::evaluation_sets`).
  virtual void on_dataloaders_ready(Trainer&) {}

  /// Before a training run reads its training state and before it writes anything: the place to
  /// lock files that another run must leave alone, and to refuse the run if another one has them.
  /// Release them in `on_run_exit`.
  virtual void on_training_run_claim(Trainer&) {}

  /// The run is set up: loaders, run configuration, scheduler, and what a training state has
  /// restored.
  virtual void on_training_run_start(Trainer&) {}
  /// The model is in training mode, and no batch has been read.
  virtual void on_train_epoch_start(Trainer&) {}
  /// Before the forward pass of each micro-batch.
  virtual void on_train_step_start(Trainer&) {}
  /// After the forward pass, before the backward pass.
  virtual void on_train_step_end(Trainer&, const Batch&, const StepOutput&) {}
  /// Once per update, between the last backward pass and clipping: the gradients are whole and
  /// averaged over the processes. In fp16 they are scaled until `Accelerator::unscale_gradients`.
  virtual void on_gradients_ready(Trainer&) {}
  /// After one update: clipping, optimizer, scheduler and zero_grad. The place for "every n
  /// updates", and for saving a training state within an epoch.
  virtual void on_train_update_end(Trainer&) {}
  /// The epoch's mean loss is in the history; its evaluation has not begun.
  virtual void on_train_epoch_end(Trainer&) {}

  /// Once for each evaluation set, in a training run and in an evaluation run: the model is in
  /// evaluation mode.
  virtual void on_eval_epoch_start(Trainer&) {}
  /// Before the forward pass of each evaluation batch.
  virtual void on_eval_step_start(Trainer&) {}
  /// After the forward pass of each evaluation batch.
  virtual void on_eval_step_end(Trainer&, const Batch&, const StepOutput&) {}
  /// The mean loss of the set is in the history.
  virtual void on_eval_epoch_end(Trainer&) {}

  /// The epoch is over: trained, evaluated, and the scheduler has seen its metrics.
  virtual void on_training_run_epoch_end(Trainer&) {}
  /// The run is over, early or not: `Trainer::result` says how. Not after an exception.
  virtual void on_training_run_end(Trainer&) {}

  /// `Trainer::evaluate` begins; its loader exists.
  virtual void on_evaluation_run_start(Trainer&) {}
  /// `Trainer::evaluate` ends, early or not. Not after an exception.
  virtual void on_evaluation_run_end(Trainer&) {}

  /// `Trainer::predict` begins.
  virtual void on_prediction_run_start(Trainer&) {}
  /// Before the forward pass of each batch.
  virtual void on_prediction_step_start(Trainer&) {}
  /// After the forward pass of each batch.
  virtual void on_prediction_step_end(Trainer&, const Batch&, const Prediction&) {}
  /// All batches have been predicted.
  virtual void on_prediction_run_end(Trainer&) {}

  /// The run ends before its time: StopTraining was thrown or `request_stop` was called.
  virtual void on_stop_training_error(Trainer&, const StopTraining&) {}

  /// Another exception ends the run. All callbacks get it; what they throw here is dropped.
  virtual void on_exception(Trainer&, std::exception_ptr) {}

  /// The last event of each call of `train`, `evaluate` and `predict`, in whatever way it ends,
  /// after the run's end or `on_exception`: the place to give back what the run has taken. All
  /// callbacks get it; after an exception, what they throw here is dropped.
  virtual void on_run_exit(Trainer&) {}

  /// State that a resumed run needs; all processes get that of the first. Empty if there is none.
  /// Called when a training state is saved, and at each epoch's last update if a callback
  /// `saves_training_states()`.
  virtual StateDict state_dict() const { return {}; }
  /// Takes what `state_dict` of the same class returned. Of a run that is resumed, before
  /// `on_training_run_start`.
  virtual void load_state_dict(const StateDict&) {}

  /// The part of the state that each process has its own of: sums over its own batches, say. Each
  /// process of a resumed run gets its own back; on another number of processes it is left out.
  virtual StateDict rank_state_dict() const { return {}; }
  /// Takes what `rank_state_dict` of the same class returned on this process, after
  /// `load_state_dict`. Called only if that was not empty.
  virtual void load_rank_state_dict(const StateDict&) {}

  /// Handles an event that `Trainer::call_event(name, payload)` fires. Unknown names do nothing.
  void handle_event(std::string_view name, Trainer& trainer, const std::any& payload);

 protected:
  /// Whether the run in progress resumes another one whose state has a part of this callback.
  bool is_resumed() const { return is_resumed_; }

  /// Override it to keep the name, and with it the states, of a class that you rename.
  virtual std::string default_name() const;

  /// Override it for a class that must be called earlier or later than others.
  virtual Phase default_phase() const { return Phase::act; }

  /// Gets what was given to `Trainer::call_event`; it must know the type of the payload.
  using EventHandler = std::function<void(Trainer&, const std::any& payload)>;

  /// Subscribes to a custom event; a later call for the same name replaces the handler.
  void on_event(std::string name, EventHandler handler);

 private:
  friend class CallbackHandler;

  std::string saved_name(const StateDict& states) const;

  bool is_resumed_ = false;
  bool is_given_ = false;  // to a Trainer, which knows it by its name
  std::optional<Phase> phase_;
  std::optional<std::string> name_;
  std::map<std::string, EventHandler, std::less<>> event_handlers_;
};

/// Callbacks in the order in which they are called.
using CallbackList = std::vector<std::shared_ptr<Callback>>;

/// Calls the callbacks, by `Callback::phase`, then in list order.
class LINKBOY_API CallbackHandler {
 public:
  /// Without callbacks.
  CallbackHandler() = default;
  /// @throws Error as `add`.
  explicit CallbackHandler(CallbackList callbacks);

  /// @throws Error if `callback` is null, or one of its name is there; the message lists the
  ///         callbacks.
  void add(std::shared_ptr<Callback> callback);
  /// Removes all callbacks.
  void clear() { callbacks_.clear(); }

  /// Removes those for which `is_unwanted` holds; returns their names.
  std::vector<std::string> remove_if(const std::function<bool(const Callback&)>& is_unwanted);

  /// In the order of calls.
  const CallbackList& callbacks() const { return callbacks_; }
  /// Their `Callback::name`s, in the order of calls.
  std::vector<std::string> names() const;

  /// The callback of type C (or derived from it), or null.
  template <class C>
  std::shared_ptr<C> find() const {
    for (const auto& callback : callbacks_) {
      if (auto found = std::dynamic_pointer_cast<C>(callback)) return found;
    }
    return nullptr;
  }

  /// Calls `function` with each callback, in the order of calls. A callback may add others, remove
  /// others and itself meanwhile: of those that come later in the order, the added ones are called
  /// as well, the removed ones not; those that come earlier have had their turn.
  template <class Function>
  void for_each(const Function& function) const {
    c10::SmallVector<const Callback*, 16> called;
    for (std::size_t i = 0; i < callbacks_.size();) {
      const std::shared_ptr<Callback> present = callbacks_[i];  // which may remove itself
      called.push_back(present.get());
      function(*present);
      const bool is_in_place = i < callbacks_.size() && callbacks_[i] == present;
      i = is_in_place ? i + 1 : index_behind(called, present->phase());
    }
  }

  /// `call(&Callback::on_train_step_start, trainer)`, by `for_each`.
  template <class... Parameters, class... Arguments>
  void call(void (Callback::*event)(Parameters...), Arguments&&... arguments) const {
    for_each([&](Callback& callback) { (callback.*event)(arguments...); });
  }

  /// A run begins that resumes nothing so far.
  void begin_run();
  /// Gives each callback its part of a training state, by its name; the others have none.
  /// @return The names of the parts, but for empty ones, that no callback has.
  std::vector<std::string> load_state_dicts(const StateDict& states);
  /// The same, with `Callback::load_rank_state_dict`.
  void load_rank_state_dicts(const StateDict& states);

  /// Whether `Callback::on_init_end` is to be called: true, the first time.
  bool take_init_end() { return !std::exchange(init_end_called_, true); }

  /// Calls `Callback::handle_event` of each.
  void call_event(std::string_view name, Trainer& trainer, const std::any& payload) const;

  /// Tells every callback, whatever any of them throws.
  void call_exception(Trainer& trainer, std::exception_ptr exception) const noexcept;
  /// Calls `Callback::on_run_exit` of every callback. @return What the first of them threw, or
  /// null.
  std::exception_ptr call_run_exit(Trainer& trainer) const noexcept;

 private:
  /// The first callback that has its turn after those that were called, the last of them with
  /// `phase`.
  std::size_t index_behind(c10::ArrayRef<const Callback*> called, Callback::Phase phase) const;

  CallbackList callbacks_;
  bool init_end_called_ = false;
};

}  // namespace linkboy
