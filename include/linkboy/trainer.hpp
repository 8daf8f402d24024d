#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>
#include <c10/util/FunctionRef.h>

#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "linkboy/accelerator.hpp"
#include "linkboy/callback.hpp"
#include "linkboy/checkpoint/checkpoint_parts.hpp"
#include "linkboy/checkpoint/state_dict.hpp"
#include "linkboy/data/batch.hpp"
#include "linkboy/data/data_loader.hpp"
#include "linkboy/export.hpp"
#include "linkboy/extend/loss_average.hpp"
#include "linkboy/loss_function.hpp"
#include "linkboy/model.hpp"
#include "linkboy/run/evaluation_set.hpp"
#include "linkboy/run/options.hpp"
#include "linkboy/run/prediction.hpp"
#include "linkboy/run/run_config.hpp"
#include "linkboy/run/run_history.hpp"
#include "linkboy/run/step_output.hpp"
#include "linkboy/run/stop_training.hpp"
#include "linkboy/run/train_result.hpp"
#include "linkboy/scheduler.hpp"
#include "linkboy/trainer/trainer_options.hpp"

namespace torch::optim {
class Optimizer;
}

namespace linkboy {

class RunSnapshot;

/// Runs the training loop; every step of it is a method to override.
///
///     linkboy::Trainer trainer(net, torch::nn::CrossEntropyLoss(), optimizer);
///     trainer.train({.train_dataset = train, .num_epochs = 8, .eval_dataset = test});
///
/// A subclass that overrides one method need not know the others. Methods named `create_`,
/// `calculate_` and `default_` return a value; all others change state. `docs/events.md` has the
/// exact order. Shares the model, the optimizer and the callbacks with the caller.
///
/// One thread uses it; any thread may call `request_stop` and `stop_requested`.
class LINKBOY_API Trainer {
 public:
  /// @param model      Anything that Model takes.
  /// @param loss_func  Null if `calculate_*_batch_loss` is overridden.
  /// @param optimizer  Null if the Trainer only evaluates and predicts.
  /// @throws Error if a callback is null or given twice; as Accelerator, which it makes.
  /// @note Collective, unless an Accelerator is given.
  Trainer(Model model, LossFunction loss_func, std::shared_ptr<torch::optim::Optimizer> optimizer,
          TrainerOptions options = {});
  virtual ~Trainer();
  Trainer(const Trainer&) = delete;
  Trainer& operator=(const Trainer&) = delete;

  // ---- Runs. All but the stops are collective. -------------------------------------------------

  /// Trains, and evaluates after the epochs if there is evaluation data.
  /// @throws OptionError if an option is out of its range; any error of a callback, a step or the
  ///         data, after `Callback::on_exception`.
  TrainResult train(const TrainOptions& options);

  /// Evaluates with a fresh run history in memory, and returns its metrics: `evaluation_loss`,
  /// unless the evaluation was stopped, and those of callbacks. The history and the counts of the
  /// training run before come back afterwards. @throws Error as `train`.
  Metrics evaluate(const EvaluateOptions& options);

  /// Evaluates the run's evaluation data once more, with the usual events. Callbacks call it, at
  /// any event but those of a step's forward and backward pass.
  /// @throws Error if there is no evaluation data; any error of the evaluation.
  void evaluate_now(const IntermediateEvaluation& evaluation);

  /// Returns `predict_step` of all samples, in the order of the loader, on the CPU, the same on all
  /// processes: a tensor has a row for each sample and a list an entry for each; tuples and dicts
  /// hold such. Without gradients, in evaluation mode; may be called in a run as well.
  /// @throws Error if the outputs of a batch are something else, or differ in form between
  ///         batches; StopTraining or any error of a callback or the data, after
  ///         `Callback::on_exception`.
  c10::IValue predict(const EvaluateOptions& options);
  /// Gives `sink` the predictions of each batch as they are made, and keeps none: for outputs that
  /// do not fit into memory. Each process has those of its own share of the data.
  /// @throws any error of `sink`; as the other overload, which alone cares for the form.
  void predict(const EvaluateOptions& options, const PredictionSink& sink);

  /// Ends the run after the update in progress; in an evaluation after the batch, or, with several
  /// processes, within 100 ms or 64 batches. The first request counts, whichever process makes it;
  /// all processes end at the same update. A request between runs ends the next run immediately. A
  /// signal handler may call the overload without a message.
  /// @{
  void request_stop(StopReason reason = StopReason::stop_request) noexcept;
  void request_stop(StopReason reason, std::string message);
  /// @}
  /// Whether this process was asked to stop.
  bool stop_requested() const;
  /// Why the run will stop. With several processes, what they have agreed on.
  std::optional<StopReason> requested_stop() const;

  // ---- Checkpoints and training states. All but `can_save_training_state` are collective. ------

  /// Writes a checkpoint that Python's `torch.load(weights_only=True)` reads, on the main process:
  /// docs/checkpoints_and_python.md lists its keys. `extras` are added to them.
  /// @throws FileError if the file cannot be written (an old one stays); Error if `extras` has a
  ///         key of linkboy's.
  void save_checkpoint(const std::filesystem::path& path, const StateDict& extras = {},
                       CheckpointParts parts = {});

  /// Loads the parts that both the file and the Trainer have; prints a line if a part of the file
  /// is left out. All processes read the file; those on a host that does not have it, or has a file
  /// of another size there, get the contents from rank 0. Waits for an asynchronous save.
  /// @return The extras.
  /// @throws Error that lists the names if a part does not fit; nothing has changed then.
  StateDict load_checkpoint(const std::filesystem::path& path, CheckpointParts parts = {});

  /// Writes all that a run needs to resume: a checkpoint, the place in the data, random number
  /// generators, run history, callbacks and `state_dict`. Any number of processes can resume it; as
  /// many as before, with batches as large, resume it bit for bit. The main process writes.
  /// @throws Error unless `can_save_training_state()`; FileError if the files cannot be written;
  ///         the error of the asynchronous save before.
  void save_training_state(const std::filesystem::path& directory, SaveStateOptions options = {});

  /// Whether nothing is half done that a state would have to hold. False within an update, in
  /// `evaluate`, while a run is set up, and from an epoch's last update to its end, unless a
  /// callback `saves_training_states()`: the state is then that of the last update.
  bool can_save_training_state() const;

  /// Waits for an asynchronous save, and throws its error, once.
  void wait_for_saves();

  /// Loads a training state; `train` does so for `TrainOptions::resume_from`.
  /// @param directory  A state's folder, a folder of states (the newest complete one is used), or
  ///        `<folder>/latest`.
  /// @return False if there is no state for "latest".
  /// @throws CorruptFileError if all states are damaged; FileError if there is none, or it
  ///         cannot be read; Error if it does not fit the model, the modules or, in the middle of
  ///         an epoch, the processes and batches.
  bool load_training_state(const std::filesystem::path& directory);

  // ---- Parts -----------------------------------------------------------------------------------

  /// The model that is trained, as the caller gave it.
  /// @{
  Model& model();
  const Model& model() const;
  /// @}
  /// Empty if none was given.
  const LossFunction& loss_func() const;
  /// Null if none was given.
  /// @{
  const std::shared_ptr<torch::optim::Optimizer>& optimizer();  ///< waits as `num_updates`
  const std::shared_ptr<torch::optim::Optimizer>& optimizer() const;
  /// @}
  /// The scheduler of the present run or the last one, which a new run replaces; may be null.
  /// @{
  Scheduler* scheduler();  ///< waits as `num_updates`
  const Scheduler* scheduler() const;
  /// @}
  /// The present run's or the last one's; null in `evaluate`.
  const std::shared_ptr<DataLoader>& train_dataloader() const;
  /// The loader of the set that is being evaluated, else of the first set.
  const std::shared_ptr<DataLoader>& eval_dataloader() const;
  /// The metrics of the run, and its count of epochs. Each process has its own.
  /// @{
  RunHistory& run_history();
  const RunHistory& run_history() const;
  /// @}
  /// Callbacks may be added or removed here, within a run as well.
  /// @{
  CallbackHandler& callback_handler();
  const CallbackHandler& callback_handler() const;
  /// @}
  /// The device and the processes that the Trainer was made for.
  /// @{
  Accelerator& accelerator();
  const Accelerator& accelerator() const;
  c10::Device device() const;
  /// @}
  /// Modules beside the model, in the order of registration. The loss function's is the first.
  const std::vector<std::shared_ptr<torch::nn::Module>>& registered_modules() const;
  /// Adds a module (a discriminator, a perceptual loss). Runs move it to the device and switch its
  /// mode with the model's; checkpoints hold it; all processes get its tensors of rank 0.
  void register_module(std::shared_ptr<torch::nn::Module> module);
  /// Adds an optimizer beside the Trainer's own (a discriminator's, a critic's), which the subclass
  /// steps by `step_optimizer`. Checkpoints and training states hold its state and its schedule's
  /// under `name`. On several processes, what it trains is a group of its own: a backward pass
  /// averages the group's gradients if its loss reaches one of them. Register its module, too, if
  /// that is not a part of the model.
  /// @param create_scheduler_fn  Makes its schedule in each run, as
  ///        `TrainOptions::create_scheduler_fn` for the Trainer's own optimizer. Placeholders are
  ///        those of the run; the schedule is stepped once per update of this optimizer.
  /// @throws Error in a run, or if the name is empty or taken or the optimizer is null; OptionError
  ///         if it is an LBFGS.
  void register_optimizer(std::string name, std::shared_ptr<torch::optim::Optimizer> optimizer,
                          CreateSchedulerFn create_scheduler_fn = {});
  /// The names of these optimizers, in the order of registration.
  std::vector<std::string> registered_optimizers() const;
  /// Returns the registered optimizer; waits as `num_updates`. @throws Error that lists the names.
  std::shared_ptr<torch::optim::Optimizer> optimizer(std::string_view name);
  /// Returns its schedule of the present run or the last one, which may be null; waits as
  /// `num_updates`. @throws Error that lists the names.
  Scheduler* scheduler(std::string_view name);

  // ---- The present run, or the last one --------------------------------------------------------

  /// What the run resolved to.
  const RunConfig& run_config() const;
  /// How the run has ended, from `training_run_end` on.
  const TrainResult& result() const;
  /// The folder of the training state that the run resumes; empty if it resumes none.
  const std::filesystem::path& resumed_from() const;
  /// Updates made. In fp16 on CUDA, the host learns late whether an update was skipped; only then
  /// is the scheduler stepped. The overload that is not const waits for it, as `scheduler()` and
  /// `optimizer()` do; the const one may be one update behind. For the thread of the run.
  /// @{
  int64_t num_updates();
  int64_t num_updates() const;
  /// @}
  /// Micro-steps of this epoch that are done.
  int64_t micro_step() const;
  /// Whether the run ends after the present epoch unless it is stopped earlier. Known from the end
  /// of the epoch's training on.
  bool is_last_epoch() const;
  /// Whether the evaluation sets were evaluated at the end of the present epoch.
  bool is_epoch_evaluated() const;
  /// Whether `max_num_updates` ended the training of the epoch before its last batch, so that a
  /// longer run that is resumed trains the rest. Known from the end of the epoch's training on.
  bool is_epoch_cut_short() const;
  /// This process's mean loss since the training epoch began.
  const LossAverage& train_loss_average() const;
  /// This process's mean loss since the evaluation of the present set began.
  const LossAverage& eval_loss_average() const;
  /// The 2-norm of the last update's gradients before clipping, a scalar on the device; undefined
  /// without `gradient_clip_norm`.
  const at::Tensor& gradient_norm() const;

  /// The sets that are evaluated; callbacks may replace their loaders in `on_dataloaders_ready`.
  std::vector<EvaluationSet>& evaluation_sets();
  /// Replaces the training data. @throws Error outside of `on_dataloaders_ready`.
  void set_train_dataloader(std::shared_ptr<DataLoader> loader);
  /// Whether `evaluate_now` has started the evaluation in progress.
  bool is_intermediate_evaluation() const;
  /// The set that is evaluated; empty if it has no name.
  const std::string& evaluation_set_name() const;
  /// Returns the full name of a metric in the current phase: history prefix, evaluation prefix, set
  /// name, "train_" or "eval_", then `name`.
  std::string metric_name(std::string_view name) const;
  /// Records the mean of `StepOutput::extras[name]`, a scalar tensor, like that of the main loss,
  /// as `train_NAME_epoch` and `eval_NAME_epoch`. Before a run.
  /// @throws Error in a run, or if the name is taken or a training step does not have it.
  void track_loss(std::string name);

  /// Calls the handlers that callbacks have for a custom event.
  void call_event(std::string_view name, const std::any& payload = {});
  /// Returns all processes' rows along dimension 0. @note Collective.
  at::Tensor gather(const at::Tensor& tensor);
  /// Prints a line on the main process; with a logger, logs it as `info`.
  virtual void print(std::string_view line);
  /// As Accelerator::log; without a logger, what rank 0 logs goes through `print`.
  void log(LogLevel level, std::string_view message, c10::ArrayRef<int64_t> ranks = {0});

 protected:
  // ---- Set-up, in this order -------------------------------------------------------------------

  /// What `TrainOptions::train_dataloader_options` is laid over: shuffled, shared between the
  /// processes, as many batches for each.
  virtual DataLoaderOptions default_train_dataloader_options(int64_t batch_size);
  /// The same for evaluation: in order, each sample once.
  virtual DataLoaderOptions default_eval_dataloader_options(int64_t batch_size);
  /// Makes the loader of `options.train_dataset`, in each process for its part of the data, or
  /// returns `options.train_dataloader`.
  virtual std::shared_ptr<DataLoader> create_train_dataloader(const TrainOptions& options);
  /// Makes the loader of `options.dataset`, once for each evaluation set, or returns
  /// `options.dataloader`.
  virtual std::shared_ptr<DataLoader> create_eval_dataloader(const EvaluateOptions& options);
  /// Moves the model to the device, gives all processes the weights of rank 0, and has the loaders
  /// put batches on the device. @note Collective.
  virtual void prepare_model_optimizer_and_dataloaders();
  /// Works out the lengths of the run, from the loaders. @note Collective.
  virtual RunConfig create_run_config(const TrainOptions& options);
  /// Returns null if `options.create_scheduler_fn` is empty. `run_config` is known.
  virtual std::unique_ptr<Scheduler> create_scheduler(const TrainOptions& options);

  /// Members of a subclass that a resumed run needs. Each process saves and loads its own;
  /// processes beyond the saved ones load those of the last one. Loaded after all else, unless it
  /// is empty.
  /// @{
  virtual StateDict state_dict() const { return {}; }
  virtual void load_state_dict(const StateDict&) {}
  /// @}

  // ---- Training --------------------------------------------------------------------------------

  /// Called before `Callback::on_training_run_start`.
  virtual void training_run_start() {}
  /// Runs all epochs. The default body:
  ///
  ///     while (begin_epoch()) {
  ///       run_train_epoch(*train_dataloader());
  ///       evaluate_epoch();
  ///       scheduler_epoch_end();
  ///       end_epoch();
  ///     }
  ///
  /// An override calls these methods, and ends each epoch that it begins. The run also ends after
  /// `RunConfig::max_num_updates` updates, however many times an epoch calls `run_train_epoch`.
  virtual void run_training();
  /// Returns whether the run has another epoch. @throws StopTraining if the run is to be left.
  /// @note Collective.
  bool begin_epoch();
  /// Runs all micro-steps of one epoch; records `train_loss_epoch`.
  virtual void run_train_epoch(DataLoader& loader);
  /// Evaluates the run's evaluation sets if that is due after this epoch. @note Collective.
  void evaluate_epoch();
  /// Calls the callbacks, and counts the epoch. @note Collective.
  void end_epoch();
  /// Puts the model into training mode.
  virtual void train_epoch_start();
  /// Runs one micro-step on a batch on the device, and the update that may end with it. The default
  /// body:
  ///
  ///     fire(&linkboy::Callback::on_train_step_start);
  ///     const linkboy::StepOutput output = forward(batch);
  ///     fire(&linkboy::Callback::on_train_step_end, batch, output);
  ///     backward(output);
  ///     if (is_update_due()) update();
  ///
  /// docs/customising.md tells what an override must do.
  virtual void train_step(const Batch& batch);
  /// Calls an event of all callbacks.
  /// @throws StopTraining if a callback has thrown it; on several processes where all can leave: in
  ///         the events at the start or end of a run, epoch or evaluation, and in `update`.
  /// @note Collective, but for the events of a step and of a run's set-up and end.
  template <class... Parameters, class... Arguments>
  void fire(void (Callback::*event)(Trainer&, Parameters...), const Arguments&... arguments) {
    call_callbacks([&](Callback& callback) { (callback.*event)(*this, arguments...); });
    if constexpr (sizeof...(Parameters) == 0) agree_after(event);
  }
  /// Runs `calculate_train_batch_loss` in the run's precision and execution mode, and adds the loss
  /// to the epoch's mean. @throws Error outside of `train_step`.
  StepOutput forward(const Batch& batch);
  /// Runs `backward_step` on the output of `forward`.
  void backward(const StepOutput& output);
  /// Whether the present micro-step is the last one of its accumulation window.
  bool is_update_due() const;
  /// Clips the gradients of the window, steps the optimizer and the scheduler, and clears them.
  /// @throws StopTraining if the run is to be left; Error if no update is due. @note Collective.
  void update();
  /// Returns the loss of a batch on the device, not divided by the accumulation steps.
  virtual StepOutput calculate_train_batch_loss(const Batch& batch);
  /// Runs the backward pass of `loss` / length of the accumulation window.
  virtual void backward_step(const at::Tensor& loss);
  /// Called once per update, on the whole accumulated gradient of the Trainer's own optimizer.
  virtual void clip_gradients();
  /// Steps the optimizer; in fp16 not if a gradient is not finite. An optimizer that
  /// `needs_closure` gets `evaluate_window` as its closure.
  virtual void optimizer_step();
  /// Makes one update of a registered optimizer: clips its gradients as the run's options say, each
  /// optimizer's for themselves, steps it (in fp16 not if one of its gradients is not finite) and
  /// clears them; if the step was made, steps its schedule. For overrides of `optimizer_step`, or
  /// of `train_step` in a micro-step whose update is due; any number of times, each after a
  /// backward pass of its own.
  /// @throws Error that lists the names if there is no such optimizer; Error if no update is due.
  /// @note Collective, as `Accelerator::optimizer_step`.
  void step_optimizer(std::string_view name);
  /// Whether `optimizer_step` evaluates the loss of the accumulation window again, so that the
  /// Trainer keeps the window's batches. Asked at the start of a run; by default, whether the
  /// optimizer is an LBFGS.
  virtual bool needs_closure() const;
  /// Computes the gradients of the accumulation window with the present weights, by
  /// `calculate_train_batch_loss` and `backward_step` for each of its batches, and returns their
  /// mean loss on this process. The first call in an update returns what the window's micro-steps
  /// have computed already. For a closure: `accelerator().optimizer_step(*optimizer(), closure)`.
  /// @throws Error outside of `optimizer_step`, or unless `needs_closure()`. @note Collective.
  at::Tensor evaluate_window();
  /// Called once per update that was made, in every run; steps the scheduler if there is one.
  virtual void scheduler_step();
  /// Clears the gradients of all optimizers, after the update.
  virtual void optimizer_zero_grad();
  /// Called after the last update of an epoch, before its loss is recorded.
  virtual void train_epoch_end() {}

  // ---- Evaluation ------------------------------------------------------------------------------

  /// Called before `Callback::on_evaluation_run_start`.
  virtual void evaluation_run_start() {}
  /// Evaluates `loader` without gradients, records the mean loss as `metric_name` after the
  /// prefixes of the evaluation, and restores the modes of the model and the registered modules.
  virtual void run_eval_epoch(DataLoader& loader, std::string_view metric_name);
  /// Puts the model and the registered modules into evaluation mode.
  virtual void eval_epoch_start();
  /// Returns the loss of an evaluation batch on the device, without gradients.
  virtual StepOutput calculate_eval_batch_loss(const Batch& batch);
  /// Returns the predictions for a batch on the device, without gradients: by default what the
  /// model returns for `batch.input()`. See `predict` for what they may be.
  virtual c10::IValue predict_step(const Batch& batch);
  /// Called after the last batch of a set, before its loss is recorded.
  virtual void eval_epoch_end() {}
  /// Called before `Callback::on_evaluation_run_end`.
  virtual void evaluation_run_end() {}

  // ---- End -------------------------------------------------------------------------------------

  /// Called once per epoch, after the evaluation; gives the metrics to the schedulers, those of
  /// registered optimizers included.
  virtual void scheduler_epoch_end();
  /// Called before `Callback::on_training_run_epoch_end`.
  virtual void training_run_epoch_end() {}
  /// Called before `Callback::on_training_run_end`; `result` is known.
  virtual void training_run_end() {}

 private:
  friend class RunSnapshot;
  struct Implementation;

  void call_callbacks(c10::function_ref<void(Callback&)> call);
  void agree_after(void (Callback::*event)(Trainer&));

  std::unique_ptr<Implementation> impl_;
};

}  // namespace linkboy
