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
#include "linkboy/loss_function.hpp"
#include "linkboy/model.hpp"
#include "linkboy/run/options.hpp"
#include "linkboy/run/run_history.hpp"
#include "linkboy/run/step_output.hpp"
#include "linkboy/run/stop_training.hpp"
#include "linkboy/scheduler.hpp"
#include "linkboy/trainer/prediction.hpp"
#include "linkboy/trainer/run.hpp"
#include "linkboy/trainer/trainer_options.hpp"

namespace torch::optim {
class Optimizer;
}

namespace linkboy {

class RunSnapshot;

/// Runs the training loop. Every step of the loop is a virtual method that a subclass can override.
///
///     linkboy::Trainer trainer(net, torch::nn::CrossEntropyLoss(), optimizer);
///     trainer.train({.train_dataset = train, .eval_dataset = test, .num_epochs = 8});
///
/// You can override one method without knowing the others:
///
/// | To change | Override |
/// |---|---|
/// | the loss | `calculate_train_batch_loss`, `calculate_eval_batch_loss` |
/// | one step of the loop | `train_step`, `eval_step`, `predict_step` |
/// | the backward pass | `backward_step` |
/// | an update | `clip_gradients`, `optimizer_step`, `needs_closure`, `optimizer_zero_grad` |
/// | the schedule | `create_scheduler`, `scheduler_step`, `scheduler_epoch_end` |
/// | an epoch, or all of them | `run_train_epoch`, `run_eval_epoch`, `run_training` |
/// | the modes of the modules | `train_epoch_start`, `eval_epoch_start` |
/// | the data | `create_train_dataloader`, `create_eval_dataloader` |
/// | default options of loaders | `default_train_dataloader_options` |
/// | those of evaluations | `default_eval_dataloader_options` |
/// | the way to the device | `prepare_model_optimizer_and_dataloaders` |
/// | the length of a run | `create_run_config` |
/// | what surrounds a run | `training_run_start`, `training_run_epoch_end`, `training_run_end` |
/// | what ends an epoch | `train_epoch_end`, `eval_epoch_end` |
/// | what surrounds an evaluation | `evaluation_run_start`, `evaluation_run_end` |
/// | what a resumed run continues | `state_dict`, `load_state_dict` |
/// | where lines are printed | `print` |
///
/// Methods named `create_*`, `calculate_*` or `default_*` return a value. `docs/the_loop.md` lists
/// all calls in order. The Trainer shares ownership of the model, the optimizer and the callbacks
/// with the caller. It cannot be copied or moved.
///
/// Use a Trainer from one thread; only `request_stop` and `stop_requested` may be called from any
/// thread.
class LINKBOY_API Trainer {
 public:
  /// @param model  Any type that converts to Model.
  /// @param loss_function  May be empty if `calculate_*_batch_loss` is overridden.
  /// @param optimizer  May be null if the Trainer only evaluates and predicts.
  /// @throws OptionError if a callback is null or two have the same name; the errors of
  ///         Accelerator's constructor, unless the options contain an Accelerator.
  /// @note Collective, unless the options contain an Accelerator.
  Trainer(Model model, LossFunction loss_function,
          std::shared_ptr<torch::optim::Optimizer> optimizer, TrainerOptions options = {});
  virtual ~Trainer();

  // ---- Runs. All except the stop functions are collective. -------------------------------------

  /// Trains the model. If there is evaluation data, also evaluates the model every
  /// `evaluate_every_n_epochs` epochs and after the last one.
  /// @throws OptionError if an option is out of range; any error from a callback, a step or the
  ///         data, after `Callback::on_exception`.
  TrainResult train(const TrainOptions& options);

  /// Evaluates the model and records the metrics in a temporary in-memory run history. From the
  /// start of the call to `on_run_exit`, `run()` is that of the evaluation; then the previous
  /// training run and its history are back.
  /// @return `evaluation_loss` (absent if the evaluation was stopped) and the metrics of the
  ///         callbacks.
  /// @throws The same errors as `train`.
  Metrics evaluate(const EvaluateOptions& options);

  /// Runs an intermediate evaluation on the run's evaluation data, with the usual events. Callbacks
  /// may call it in any event except those around a step's forward and backward pass.
  /// @throws Error if there is no evaluation data; any error from the evaluation.
  void evaluate_now(const IntermediateEvaluation& evaluation);

  /// Returns the outputs of `predict_step` for all samples, in the loader's order, on the CPU. The
  /// result is the same on all processes. A tensor must have one row per sample, and a list one
  /// entry per sample; tuples and dicts may contain both. The model runs without gradients and in
  /// evaluation mode. You can also call `predict` during a run, but without `options.callbacks`.
  /// @throws OptionError if an option is out of range; Error if the outputs of a batch have another
  ///         type or length, if they differ in form between batches, or if the loader returns no
  ///         batch; StopTraining after a stop request; any error from a callback or the data, after
  ///         `Callback::on_exception`.
  /// @note Collective.
  c10::IValue predict(const EvaluateOptions& options);
  /// Passes the predictions of each batch to `sink` and does not store them, for outputs that do
  /// not fit into memory. Each process receives the predictions for its own share of the data.
  /// @throws Any error from `sink`; the errors of the other overload, except those about the form
  ///         of the outputs and about a loader without batches.
  void predict(const EvaluateOptions& options, const PredictionSink& sink);

  /// Ends the run after the update in progress. `StopReason::stop_request` also ends an evaluation
  /// in progress, after the batch in progress; with several processes, within about 100 ms, but
  /// after at least one batch and at most 64. For the other reasons, a training run completes its
  /// evaluation. The request may come from any process; all processes stop at the same update. The
  /// result has the reason of the first request. Callbacks at the end of the run do not see a
  /// request that has ended it, so they can evaluate and predict. A request between runs ends the
  /// next run immediately. A signal handler may call the overload without a message.
  /// @{
  void request_stop(StopReason reason = StopReason::stop_request) noexcept;
  void request_stop(StopReason reason, std::string message);
  /// @}
  /// Whether this process has received a stop request.
  bool stop_requested() const;
  /// The reason why the run will stop, or nullopt. With several processes, the reason from their
  /// stop agreement.
  std::optional<StopReason> requested_stop() const;

 protected:
  // ==== Override these ==========================================================================

  // ---- Set-up, in this order -------------------------------------------------------------------

  /// Returns the defaults for training loaders, which `TrainOptions::train_dataloader_options`
  /// overrides: shuffled, shared between the processes, and with the same number of batches on
  /// each.
  virtual DataLoaderOptions default_train_dataloader_options(int64_t batch_size);
  /// Returns the defaults for evaluation loaders, which `TrainOptions::eval_dataloader_options`
  /// overrides: in order, and with each sample exactly once.
  virtual DataLoaderOptions default_eval_dataloader_options(int64_t batch_size);
  /// Creates the loader of this process's share of `options.train_dataset`. If
  /// `options.train_dataloader` is set, returns that loader instead.
  virtual std::shared_ptr<DataLoader> create_train_dataloader(const TrainOptions& options);
  /// Creates the loader of `options.dataset`. If `options.dataloader` is set, returns that loader
  /// instead. Called once for each evaluation set.
  virtual std::shared_ptr<DataLoader> create_eval_dataloader(const EvaluateOptions& options);
  /// Moves the model to the device, broadcasts rank 0's weights to all processes, and wraps the
  /// loaders so that their batches arrive on the device.
  /// @note Collective.
  virtual void prepare_model_optimizer_and_dataloaders();
  /// Computes the lengths of the run from the loaders.
  /// @note Collective.
  virtual RunConfig create_run_config(const TrainOptions& options);
  /// Creates the run's scheduler; returns null if `options.create_scheduler_fn` is empty. Called
  /// after `Run::config` is set.
  virtual std::unique_ptr<Scheduler> create_scheduler(const TrainOptions& options);

  // ---- Training --------------------------------------------------------------------------------

  /// Called before `Callback::on_training_run_start`.
  virtual void training_run_start() {}
  /// Runs all epochs. The default body:
  ///
  ///     while (begin_epoch()) {
  ///       run_train_epoch(*run().train_dataloader());
  ///       evaluate_epoch();
  ///       scheduler_epoch_end();
  ///       end_epoch();
  ///     }
  ///
  /// An override must call these methods, and must end each epoch that it begins. The run also ends
  /// after `RunConfig::max_num_updates` updates, regardless of how often an epoch calls
  /// `run_train_epoch`.
  virtual void run_training();
  /// Runs all micro-steps of one epoch and records `train_loss_epoch`.
  virtual void run_train_epoch(DataLoader& loader);
  /// Switches the model to training mode.
  virtual void train_epoch_start();
  /// Runs one micro-step on a batch that is on the device. If the micro-step completes its
  /// accumulation window, also performs the update. The default body:
  ///
  ///     fire<linkboy::Event::train_step_start>();
  ///     const linkboy::StepOutput output = forward(batch);
  ///     fire<linkboy::Event::train_step_end>(batch, output);
  ///     backward(output);
  ///     if (is_update_due()) update();
  ///
  /// docs/custom_optimizers.md describes the requirements on an override.
  virtual void train_step(const Batch& batch);
  /// Returns the loss of a batch that is on the device. Do not divide it by the accumulation steps.
  virtual StepOutput calculate_train_batch_loss(const Batch& batch);
  /// Runs the backward pass of `loss` divided by the length of the accumulation window.
  virtual void backward_step(const at::Tensor& loss);
  /// Clips the accumulated gradients of the Trainer's own optimizer. Called once per update.
  virtual void clip_gradients();
  /// Steps the optimizer. In fp16, skips the step if a gradient is not finite. If
  /// `needs_closure()`, passes `evaluate_window` to the optimizer as its closure.
  virtual void optimizer_step();
  /// Whether `optimizer_step` evaluates the loss of the accumulation window again, which requires
  /// the Trainer to keep the window's batches. The Trainer calls it at the start of a run. The
  /// default returns true for an LBFGS.
  virtual bool needs_closure() const;
  /// Steps the scheduler if there is one. Called once per update, except for skipped updates.
  virtual void scheduler_step();
  /// Clears the gradients of all optimizers after an update.
  virtual void optimizer_zero_grad();
  /// Called after the last update of an epoch, before its loss is recorded.
  virtual void train_epoch_end() {}

  // ---- Evaluation ------------------------------------------------------------------------------

  /// Called before `Callback::on_evaluation_run_start`.
  virtual void evaluation_run_start() {}
  /// Evaluates the model on `loader` without gradients and records the mean loss. The name of the
  /// metric is `metric_name`, preceded by the prefixes of the evaluation. Afterwards, restores the
  /// modes of the model and of the registered modules.
  virtual void run_eval_epoch(DataLoader& loader, std::string_view metric_name);
  /// Switches the model and the registered modules to evaluation mode.
  virtual void eval_epoch_start();
  /// Evaluates the model on a batch that is on the device. The default body:
  ///
  ///     fire<linkboy::Event::eval_step_start>();
  ///     const linkboy::StepOutput output = eval_forward(batch);
  ///     fire<linkboy::Event::eval_step_end>(batch, output);
  virtual void eval_step(const Batch& batch);
  /// Returns the loss of an evaluation batch that is on the device. Called without gradients.
  virtual StepOutput calculate_eval_batch_loss(const Batch& batch);
  /// Returns the predictions for a batch that is on the device. Called without gradients. The
  /// default returns the model's output for `batch.input()`. `predict` documents the accepted
  /// forms.
  virtual c10::IValue predict_step(const Batch& batch);
  /// Called after the last batch of a set, before its loss is recorded.
  virtual void eval_epoch_end() {}
  /// Called before `Callback::on_evaluation_run_end`.
  virtual void evaluation_run_end() {}

  // ---- End -------------------------------------------------------------------------------------

  /// Passes the epoch's metrics to the schedulers, including those of registered optimizers. Called
  /// once per epoch, after the evaluation.
  virtual void scheduler_epoch_end();
  /// Called before `Callback::on_training_run_epoch_end`.
  virtual void training_run_epoch_end() {}
  /// Called before `Callback::on_training_run_end`, when `Run::result` is complete.
  virtual void training_run_end() {}

  // ---- The members of a subclass ---------------------------------------------------------------

  /// The state of a subclass that a resumed run needs. Each process saves and loads its own state.
  /// If a run resumes with more processes, the additional ones load the state of the last saved
  /// process. `load_state_dict` is called only if the state is not empty, after the other parts of
  /// the training state are loaded; they stay loaded if it throws.
  /// @{
  [[nodiscard]] virtual StateDict state_dict() const { return {}; }
  virtual void load_state_dict(const StateDict&) {}
  /// @}

  // ==== Call these in an override ===============================================================

  /// Begins the next epoch. Returns false if the run has no more epochs.
  /// @throws StopTraining if the run must end now.
  /// @note Collective.
  bool begin_epoch();
  /// Evaluates the run's evaluation sets if an evaluation is due after this epoch.
  /// @note Collective.
  void evaluate_epoch();
  /// Ends the epoch: calls the callbacks and counts the epoch.
  /// @note Collective.
  void end_epoch();
  /// Calls an event on all callbacks.
  /// @throws StopTraining if a callback has thrown it. With several processes, this happens only
  ///         where all of them can leave the run: in the events at the start or end of a run, epoch
  ///         or evaluation, and in `update`.
  /// @note Collective, except for the events of a step and those of a run's set-up and end.
  template <Event event, class... Arguments>
  void fire(const Arguments&... arguments) {
    using Traits = EventTraits<event>;
    call_callbacks([&](Callback& callback) { (callback.*Traits::method)(*this, arguments...); });
    if constexpr (Traits::is_called_together) leave_together();
    if constexpr (event == Event::train_update_end) leave_after_update();
  }
  /// Runs `calculate_train_batch_loss` in the run's precision and execution mode, and adds the loss
  /// to the epoch's mean.
  /// @throws Error outside of `train_step`.
  StepOutput forward(const Batch& batch);
  /// Runs `backward_step` on the output of `forward`.
  void backward(const StepOutput& output);
  /// Whether the current micro-step is the last one of its accumulation window.
  bool is_update_due() const;
  /// Clips the gradients of the accumulation window, steps the optimizer and the scheduler, and
  /// clears the gradients.
  /// @throws StopTraining if the run must end now; Error if no update is due.
  /// @note Collective.
  void update();
  /// Performs one update of a registered optimizer: clips its gradients according to the run's
  /// options, steps it (in fp16 only if all of its gradients are finite) and clears the gradients.
  /// If the step was not skipped, steps its schedule. Clips the gradients of each optimizer
  /// separately. Call it in an override of `optimizer_step`, or in `train_step` if
  /// `is_update_due()`. You may call it several times, each time after another backward pass.
  /// @throws Error that lists the names if there is no such optimizer; Error if no update is due.
  /// @note Collective under the same conditions as `Accelerator::optimizer_step`.
  void step_optimizer(std::string_view name);
  /// Computes the gradients of the accumulation window with the current weights: calls
  /// `calculate_train_batch_loss` and `backward_step` for each of its batches. Returns the mean
  /// loss on this process. The first call in an update reuses the results of the micro-steps that
  /// have already run. Use it as a closure: `accelerator().optimizer_step(*optimizer(), closure)`.
  /// @throws Error outside of `optimizer_step`, or unless `needs_closure()`.
  /// @note Collective.
  at::Tensor evaluate_window();
  /// Runs `calculate_eval_batch_loss` in the run's precision, and adds the loss to the means of the
  /// set.
  /// @throws Error outside of `eval_step`, or if the output has no loss.
  StepOutput eval_forward(const Batch& batch);

 public:
  // ---- Checkpoints and training states. Collective, unless a comment says otherwise. -----------

  /// Writes a checkpoint with `extras` as additional entries, on the main process or, with
  /// `parts.save_per_node`, on one process per host. Python's `torch.load(weights_only=True)` can
  /// read it; docs/checkpoints_and_python.md lists its keys.
  /// @throws FileError on the writing process if the file cannot be written (a previous file
  ///         remains unchanged); Error if `extras` contains one of linkboy's own keys.
  void save_checkpoint(const std::filesystem::path& path, const StateDict& extras = {},
                       CheckpointParts parts = {});

  /// Loads the parts that both the file and the Trainer have, and prints which parts only one of
  /// them has. All processes read the file. If a host does not have the file, or has a different
  /// one (in its size or its last MiB), its processes receive the contents from rank 0. Waits for
  /// an asynchronous save. Before the first epoch of a training run, the learning rates (and other
  /// scheduled fields) are then the current values of the schedules.
  /// @return The extras.
  /// @throws FileError if the file cannot be read; Error that lists the names if a part does not
  ///         fit. In both cases, nothing has changed.
  StateDict load_checkpoint(const std::filesystem::path& path, CheckpointParts parts = {});

  /// Writes everything that a run needs to resume: a checkpoint, the position in the data, the
  /// states of the random number generators, the run history, the states of the callbacks and
  /// `state_dict`. The main process writes the file. With the same number of processes and the same
  /// batch sizes, the resumed run is bit-identical to an uninterrupted one. A different number of
  /// processes can also resume from it; see `load_training_state` about states in mid-epoch. The
  /// state has the model's current weights. If another checkpoint was loaded at the end of the run,
  /// as SaveBestModel does, a longer run continues from that one.
  /// @throws Error unless `can_save_training_state()`; FileError on the main process if the file
  ///         cannot be written; on all processes, the error of the previous asynchronous save.
  void save_training_state(const std::filesystem::path& directory, SaveStateOptions options = {});

  /// Whether a training state can be saved now. False within an update, in `evaluate`, in
  /// `predict` outside of a run, during a run's set-up, and from an epoch's last update to the
  /// epoch's end. If a callback `saves_training_states()`, it is true in that last period, too; the
  /// saved state is then that of the last update.
  /// @note Not collective.
  bool can_save_training_state() const;

  /// Waits for an asynchronous save. If the save failed, throws its error, but only once.
  /// @note Not collective.
  void wait_for_saves();

  /// Loads a training state. `train` calls it for `TrainOptions::resume_from`.
  /// @param directory  A state's folder, a folder of states (the newest complete one is used), or
  ///        `<folder>/latest`.
  /// @return False if `directory` is `<folder>/latest` and there is no state.
  /// @throws CorruptFileError if all states are damaged; FileError if no state is found or if it
  ///         cannot be read; Error if it does not match the model, the modules, the optimizers or
  ///         the schedules; any error of a callback. In all these cases, nothing has changed. Only
  ///         a run that fails to resume may leave its callbacks and loader with a part of the
  ///         state; the next run discards it.
  /// @note If, with this run's batches and processes, no accumulation window ends at the position
  ///       of a state in mid-epoch, the run starts at the end of the last one before it, and a
  ///       warning says how many samples are trained a second time.
  bool load_training_state(const std::filesystem::path& directory);

  // ---- The run ---------------------------------------------------------------------------------

  /// The run in progress, or the last training run.
  const Run& run() const;
  /// Number of updates so far in this run; 0 in the runs of `evaluate` and `predict`. In fp16 on
  /// CUDA, the host finds out late whether an update was skipped, and steps the scheduler only
  /// then. This method, `scheduler` and `optimizer` wait for that result; `Run::num_known_updates`
  /// does not.
  int64_t num_updates();
  /// In `on_train_update_end`, whether the optimizer's step was skipped, so that the update does
  /// not count. Waits for the result.
  bool was_update_skipped();
  /// The run's evaluation sets. Callbacks may replace their loaders in `on_dataloaders_ready`.
  std::vector<EvaluationSet>& evaluation_sets();
  /// Replaces the training data. In `on_training_run_claim`, the run configuration and the
  /// schedules exist already and do not change.
  /// @throws Error if `loader` is null, or outside of `on_dataloaders_ready` and
  ///         `on_training_run_claim`.
  void set_train_dataloader(std::shared_ptr<DataLoader> loader);
  /// Records the mean of `StepOutput::extras[name]`, a scalar tensor, as the metrics
  /// `train_NAME_epoch` and `eval_NAME_epoch`, in the same way as the main loss. Call it before a
  /// run.
  /// @throws Error if called during a run, or if `name` is empty, "loss" or already tracked; during
  ///         training, if a step's output does not contain it.
  void track_loss(std::string name);

  /// Calls the handlers that callbacks have registered for a custom event.
  void call_event(std::string_view name, const std::any& payload = {});
  /// Prints a line on the main process. If there is a logger, logs the line as `info` instead.
  virtual void print(std::string_view line);
  /// Logs a message as `Accelerator::log` does. Without a logger, rank 0's messages are printed
  /// with `print`.
  void log(LogLevel level, std::string_view message, c10::ArrayRef<int64_t> ranks = {0});

  // ---- Parts -----------------------------------------------------------------------------------

  /// The model that was passed to the constructor.
  Model& model();
  /// The loss function; empty if none was passed.
  const LossFunction& loss_function() const;
  /// The optimizer (null if none was passed), or the registered optimizer called `name`. Waits like
  /// `num_updates`.
  /// @throws Error that lists the names if there is no such optimizer.
  const std::shared_ptr<torch::optim::Optimizer>& optimizer(std::string_view name = {});
  /// The schedule of the same optimizer in the current or last training run; may be null. The next
  /// run replaces it. Waits like `num_updates`.
  /// @throws Error that lists the names if there is no such optimizer.
  Scheduler* scheduler(std::string_view name = {});
  /// The metrics and the epoch count of the run. Each process has its own.
  RunHistory& run_history() const;
  /// The Trainer's callbacks. You can add and remove callbacks here, even during a run.
  CallbackHandler& callback_handler();
  /// The device and the processes that the Trainer uses.
  Accelerator& accelerator() const;
  /// The modules that are registered in addition to the model, in the order of registration. The
  /// module of the loss function, if any, comes first.
  const std::vector<std::shared_ptr<torch::nn::Module>>& registered_modules() const;
  /// Registers another module (for example a discriminator or a perceptual loss). A run moves it to
  /// the device and broadcasts rank 0's tensors to all processes. Evaluations switch it to
  /// evaluation mode and then restore its mode. Checkpoints contain it.
  /// @throws Error if `module` is null.
  void register_module(std::shared_ptr<torch::nn::Module> module);
  /// Registers another optimizer (for example for a discriminator or a critic), which the subclass
  /// steps with `step_optimizer`. Checkpoints and training states store its state and that of its
  /// schedule under `name`. If it trains a module that is not part of the model, register that
  /// module, too. With several processes, the parameters of each optimizer form a separate group: a
  /// backward pass averages the gradients of a group if the loss reaches one of its parameters.
  /// @param create_scheduler_fn  Creates the schedule of this optimizer in each run, as
  ///        `TrainOptions::create_scheduler_fn` does for the Trainer's own optimizer. Placeholders
  ///        have the run's values. Each update of this optimizer steps the schedule once.
  /// @throws Error if called during a run, if the name is empty or already registered, or if the
  ///         optimizer is null; OptionError if the optimizer is an LBFGS.
  void register_optimizer(std::string name, std::shared_ptr<torch::optim::Optimizer> optimizer,
                          CreateSchedulerFn create_scheduler_fn = {});

 private:
  friend class RunSnapshot;
  struct Implementation;

  void call_callbacks(c10::function_ref<void(Callback&)> call);
  void leave_together();
  void leave_after_update();

  std::unique_ptr<Implementation> impl_;
};

}  // namespace linkboy
