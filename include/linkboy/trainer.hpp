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

/// Runs the training loop. Every step of the loop is a virtual method that a subclass can override.
///
///     linkboy::Trainer trainer(net, torch::nn::CrossEntropyLoss(), optimizer);
///     trainer.train({.train_dataset = train, .num_epochs = 8, .eval_dataset = test});
///
/// A subclass can override one method without knowing the others. Methods whose names begin with
/// `create_`, `calculate_` or `default_` return a value; all others change state. `docs/events.md`
/// gives the exact order. The Trainer shares the model, the optimizer and the callbacks with the
/// caller.
///
/// Use a Trainer from one thread. Only `request_stop` and `stop_requested` may be called from any
/// thread.
class LINKBOY_API Trainer {
 public:
  /// @param model  Any model that Model can hold.
  /// @param loss_func  May be empty if `calculate_*_batch_loss` is overridden.
  /// @param optimizer  May be null if the Trainer only evaluates and predicts.
  /// @throws OptionError if a callback is null or two have the same name; the errors of
  ///         Accelerator's constructor, unless the options contain an Accelerator.
  /// @note Collective, unless the options contain an Accelerator.
  Trainer(Model model, LossFunction loss_func, std::shared_ptr<torch::optim::Optimizer> optimizer,
          TrainerOptions options = {});
  virtual ~Trainer();
  Trainer(const Trainer&) = delete;
  Trainer& operator=(const Trainer&) = delete;

  // ---- Runs. All but the stops are collective. -------------------------------------------------

  /// Trains the model. If there is evaluation data, evaluates it after the epochs.
  /// @throws OptionError if an option is out of range; any error of a callback, a step or the data,
  ///         after `Callback::on_exception`.
  TrainResult train(const TrainOptions& options);

  /// Evaluates with a temporary run history in memory. Afterwards restores the history and the
  /// counts of the previous training run.
  /// @return The metrics: `evaluation_loss`, unless the evaluation was stopped, and those of the
  ///         callbacks.
  /// @throws The same errors as `train`.
  Metrics evaluate(const EvaluateOptions& options);

  /// Evaluates the run's evaluation data in addition to the regular evaluations, with the usual
  /// events. Callbacks may call it in any event except those of a step's forward and backward pass.
  /// @throws Error if there is no evaluation data; any error of the evaluation.
  void evaluate_now(const IntermediateEvaluation& evaluation);

  /// Returns the outputs of `predict_step` for all samples, in the loader's order, on the CPU. The
  /// result is the same on all processes. A tensor must have one row per sample and a list one
  /// entry per sample; tuples and dicts may contain these. The model runs without gradients and in
  /// evaluation mode. `predict` may also be called during a run.
  /// @throws Error if the outputs of a batch have another type or length, or differ in form between
  ///         batches, or if the loader returns no batch; StopTraining after a stop request; any
  ///         error of a callback or the data, after `Callback::on_exception`.
  /// @note Collective.
  c10::IValue predict(const EvaluateOptions& options);
  /// Passes the predictions of each batch to `sink` as they are made and does not keep them, for
  /// outputs that do not fit into memory. Each process passes the predictions for its own share of
  /// the data.
  /// @throws Any error of `sink`; the errors of the other overload, except those about the form of
  ///         the outputs.
  void predict(const EvaluateOptions& options, const PredictionSink& sink);

  /// Ends the run after the update in progress. An evaluation ends after the batch in progress or,
  /// with several processes, within 100 ms or 64 batches. The first request counts, whichever
  /// process makes it, and all processes end at the same update. A request between runs ends the
  /// next run immediately. A signal handler may call the overload without a message.
  /// @{
  void request_stop(StopReason reason = StopReason::stop_request) noexcept;
  void request_stop(StopReason reason, std::string message);
  /// @}
  /// Whether this process has received a stop request.
  bool stop_requested() const;
  /// The reason for which the run will stop, if any. With several processes, the reason that they
  /// have agreed on.
  std::optional<StopReason> requested_stop() const;

  // ---- Checkpoints and training states. All but `can_save_training_state` are collective. ------

  /// Writes a checkpoint on the main process. Python's `torch.load(weights_only=True)` can read it;
  /// docs/checkpoints_and_python.md lists its keys. `extras` are added to them.
  /// @throws FileError if the file cannot be written (a previous file stays as it is); Error if
  ///         `extras` has one of linkboy's own keys.
  void save_checkpoint(const std::filesystem::path& path, const StateDict& extras = {},
                       CheckpointParts parts = {});

  /// Loads the parts that both the file and the Trainer have, and prints a line if it leaves out a
  /// part of the file. All processes read the file. If a host does not have the file, or has a
  /// different one (in its size or its last MiB), its processes get the contents from rank 0. Waits
  /// for an asynchronous save.
  /// @return The extras.
  /// @throws Error that lists the names if a part does not fit; nothing has changed in this case.
  StateDict load_checkpoint(const std::filesystem::path& path, CheckpointParts parts = {});

  /// Writes everything that a run needs to resume: a checkpoint, the position in the data, the
  /// states of the random number generators, the run history, the states of the callbacks and
  /// `state_dict`. Any number of processes can resume from it. With the same number of processes
  /// and the same batch sizes, the resumed run is bit-identical. The main process writes the files.
  /// @throws Error unless `can_save_training_state()`; FileError if the files cannot be written;
  ///         the error of the previous asynchronous save.
  void save_training_state(const std::filesystem::path& directory, SaveStateOptions options = {});

  /// Whether a training state can be saved now. False within an update, in `evaluate`, while a run
  /// is set up, and from an epoch's last update to the epoch's end. In that last period it is true
  /// if a callback `saves_training_states()`; the saved state is then that of the last update.
  bool can_save_training_state() const;

  /// Waits for an asynchronous save. If the save failed, throws its error, once.
  void wait_for_saves();

  /// Loads a training state. `train` calls it for `TrainOptions::resume_from`.
  /// @param directory  A state's folder, a folder of states (the newest complete one is used), or
  ///        `<folder>/latest`.
  /// @return False if `directory` is `<folder>/latest` and there is no state.
  /// @throws CorruptFileError if all states are damaged; FileError if no state is found or it
  ///         cannot be read; Error if it does not match the model, the modules or, for a mid-epoch
  ///         state, the number of processes and the batch size.
  bool load_training_state(const std::filesystem::path& directory);

  // ---- Parts -----------------------------------------------------------------------------------

  /// The model that the Trainer trains, as the caller gave it.
  /// @{
  Model& model();
  const Model& model() const;
  /// @}
  /// The loss function; empty if none was given.
  const LossFunction& loss_func() const;
  /// The optimizer; null if none was given.
  /// @{
  const std::shared_ptr<torch::optim::Optimizer>& optimizer();  ///< waits like `num_updates()`
  const std::shared_ptr<torch::optim::Optimizer>& optimizer() const;
  /// @}
  /// The scheduler of the current or last run; may be null. The next run replaces it.
  /// @{
  Scheduler* scheduler();  ///< waits like `num_updates()`
  const Scheduler* scheduler() const;
  /// @}
  /// The training loader of the current or last run; null in `evaluate`.
  const std::shared_ptr<DataLoader>& train_dataloader() const;
  /// The loader of the set that is being evaluated; otherwise that of the first set.
  const std::shared_ptr<DataLoader>& eval_dataloader() const;
  /// The metrics and the epoch count of the run. Each process has its own.
  /// @{
  RunHistory& run_history();
  const RunHistory& run_history() const;
  /// @}
  /// The Trainer's callbacks. They may be added and removed here, also during a run.
  /// @{
  CallbackHandler& callback_handler();
  const CallbackHandler& callback_handler() const;
  /// @}
  /// The device and the processes that the Trainer uses.
  /// @{
  Accelerator& accelerator();
  const Accelerator& accelerator() const;
  c10::Device device() const;
  /// @}
  /// The modules that are registered in addition to the model, in the order of registration. The
  /// module of the loss function comes first.
  const std::vector<std::shared_ptr<torch::nn::Module>>& registered_modules() const;
  /// Adds a module (for example a discriminator or a perceptual loss). A run moves it to the
  /// device. Evaluations put it into evaluation mode and then restore its mode. Checkpoints contain
  /// it, and all processes get rank 0's tensors.
  /// @throws Error if `module` is null.
  void register_module(std::shared_ptr<torch::nn::Module> module);
  /// Adds another optimizer (for example for a discriminator or a critic), which the subclass
  /// steps with `step_optimizer`. Checkpoints and training states store its state and that of its
  /// schedule under `name`. If the module that it trains is not a part of the model, register that
  /// module, too. With several processes, the parameters of each optimizer form a separate group: a
  /// backward pass averages the gradients of a group if the loss reaches one of its parameters.
  /// @param create_scheduler_fn  Makes the schedule of this optimizer in each run, as
  ///        `TrainOptions::create_scheduler_fn` does for the Trainer's own optimizer. Placeholders
  ///        have the run's values. The schedule is stepped once per update of this optimizer.
  /// @throws Error if called during a run, if the name is empty or already registered, or if the
  ///         optimizer is null; OptionError if the optimizer is an LBFGS.
  void register_optimizer(std::string name, std::shared_ptr<torch::optim::Optimizer> optimizer,
                          CreateSchedulerFn create_scheduler_fn = {});
  /// The names of the registered optimizers, in the order of registration.
  std::vector<std::string> registered_optimizers() const;
  /// Returns the registered optimizer called `name`. Like `num_updates`, waits for the device.
  /// @throws Error that lists the names if there is no such optimizer.
  std::shared_ptr<torch::optim::Optimizer> optimizer(std::string_view name);
  /// Returns the schedule of the registered optimizer called `name` in the current or last run; may
  /// be null. Like `num_updates`, waits for the device.
  /// @throws Error that lists the names if there is no such optimizer.
  Scheduler* scheduler(std::string_view name);

  // ---- The current run, or the last one --------------------------------------------------------

  /// The lengths and sizes that the run's options resolved to.
  const RunConfig& run_config() const;
  /// The outcome of the run; known from `training_run_end` on.
  const TrainResult& result() const;
  /// The folder of the training state that the run resumed from; empty if the run was not resumed.
  const std::filesystem::path& resumed_from() const;
  /// Number of updates made. In fp16 on CUDA, the host learns late whether an update was skipped,
  /// and steps the scheduler only then. The non-const overload waits for that result, as
  /// `scheduler()` and `optimizer()` do; the const one may be one update behind. Call the non-const
  /// overloads only from the thread of the run.
  /// @{
  int64_t num_updates();
  int64_t num_updates() const;
  /// @}
  /// Number of completed micro-steps in this epoch.
  int64_t micro_step() const;
  /// Whether the run ends after the current epoch unless it is stopped earlier. Known once the
  /// epoch's training has ended.
  bool is_last_epoch() const;
  /// Whether the evaluation sets were evaluated at the end of the current epoch.
  bool is_epoch_evaluated() const;
  /// Whether `max_num_updates` ended the epoch's training before its last batch. If so, a longer
  /// run that resumes trains the remaining batches. Known once the epoch's training has ended.
  bool is_epoch_cut_short() const;
  /// This process's mean loss since the start of the training epoch.
  const LossAverage& train_loss_average() const;
  /// This process's mean loss since the evaluation of the current set began.
  const LossAverage& eval_loss_average() const;
  /// The 2-norm of the last update's gradients before clipping, as a scalar on the device;
  /// undefined without `gradient_clip_norm`.
  const at::Tensor& gradient_norm() const;

  /// The evaluation sets of the run. Callbacks may replace their loaders in `on_dataloaders_ready`.
  std::vector<EvaluationSet>& evaluation_sets();
  /// Replaces the training data.
  /// @throws Error if `loader` is null, or outside of `on_dataloaders_ready`.
  void set_train_dataloader(std::shared_ptr<DataLoader> loader);
  /// Whether `evaluate_now` has started the evaluation in progress.
  bool is_intermediate_evaluation() const;
  /// The name of the set that is being evaluated; empty if the set does not have a name.
  const std::string& evaluation_set_name() const;
  /// Returns the full name of a metric in the current phase: history prefix, evaluation prefix, set
  /// name, "train_" or "eval_", then `name`.
  std::string metric_name(std::string_view name) const;
  /// Records the mean of `StepOutput::extras[name]`, a scalar tensor, as the metrics
  /// `train_NAME_epoch` and `eval_NAME_epoch`, in the same way as the main loss. Call it before a
  /// run.
  /// @throws Error if called during a run or if the name is already tracked; during training, if a
  ///         step's output does not have it.
  void track_loss(std::string name);

  /// Calls the handlers that callbacks have registered for a custom event.
  void call_event(std::string_view name, const std::any& payload = {});
  /// Returns the rows of all processes, concatenated along dimension 0.
  /// @note Collective.
  at::Tensor gather(const at::Tensor& tensor);
  /// Prints a line on the main process. If there is a logger, logs the line as `info` instead.
  virtual void print(std::string_view line);
  /// Logs a message as `Accelerator::log` does. Without a logger, rank 0's messages are printed
  /// with `print`.
  void log(LogLevel level, std::string_view message, c10::ArrayRef<int64_t> ranks = {0});

 protected:
  // ---- Set-up, in this order -------------------------------------------------------------------

  /// Returns the defaults for training loaders, which `TrainOptions::train_dataloader_options`
  /// overrides: shuffled, shared between the processes, and with the same number of batches on
  /// each.
  virtual DataLoaderOptions default_train_dataloader_options(int64_t batch_size);
  /// Returns the defaults for evaluation loaders, which `TrainOptions::eval_dataloader_options`
  /// overrides: in order, and with each sample exactly once.
  virtual DataLoaderOptions default_eval_dataloader_options(int64_t batch_size);
  /// Makes the loader of `options.train_dataset`, which on each process covers that process's part
  /// of the data. If `options.train_dataloader` is given, returns that.
  virtual std::shared_ptr<DataLoader> create_train_dataloader(const TrainOptions& options);
  /// Makes the loader of `options.dataset`. If `options.dataloader` is given, returns that. Called
  /// once for each evaluation set.
  virtual std::shared_ptr<DataLoader> create_eval_dataloader(const EvaluateOptions& options);
  /// Moves the model to the device, broadcasts rank 0's weights to all processes, and makes the
  /// loaders put their batches on the device.
  /// @note Collective.
  virtual void prepare_model_optimizer_and_dataloaders();
  /// Computes the lengths of the run from the loaders.
  /// @note Collective.
  virtual RunConfig create_run_config(const TrainOptions& options);
  /// Makes the run's scheduler; returns null if `options.create_scheduler_fn` is empty.
  /// `run_config` is known when it is called.
  virtual std::unique_ptr<Scheduler> create_scheduler(const TrainOptions& options);

  /// The state of a subclass that a resumed run needs. Each process saves and loads its own state.
  /// If a run resumes with more processes, the additional ones load the state of the last saved
  /// process. `load_state_dict` is called after everything else is loaded, and only if the state is
  /// not empty.
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
  /// An override must call these methods, and must end each epoch that it begins. The run also ends
  /// after `RunConfig::max_num_updates` updates, no matter how often an epoch calls
  /// `run_train_epoch`.
  virtual void run_training();
  /// Returns whether the run has another epoch.
  /// @throws StopTraining if the run must end now.
  /// @note Collective.
  bool begin_epoch();
  /// Runs all micro-steps of one epoch and records `train_loss_epoch`.
  virtual void run_train_epoch(DataLoader& loader);
  /// Evaluates the run's evaluation sets if an evaluation is due after this epoch.
  /// @note Collective.
  void evaluate_epoch();
  /// Ends the epoch: calls the callbacks and counts the epoch.
  /// @note Collective.
  void end_epoch();
  /// Puts the model into training mode.
  virtual void train_epoch_start();
  /// Runs one micro-step on a batch that is on the device. If the micro-step completes its
  /// accumulation window, also runs the update. The default body:
  ///
  ///     fire(&linkboy::Callback::on_train_step_start);
  ///     const linkboy::StepOutput output = forward(batch);
  ///     fire(&linkboy::Callback::on_train_step_end, batch, output);
  ///     backward(output);
  ///     if (is_update_due()) update();
  ///
  /// docs/customising.md describes the requirements on an override.
  virtual void train_step(const Batch& batch);
  /// Calls an event on all callbacks.
  /// @throws StopTraining if a callback has thrown it. With several processes, it is thrown only
  ///         where all of them can leave: in the events at the start or end of a run, epoch or
  ///         evaluation, and in `update`.
  /// @note Collective, except for the events of a step and those of a run's set-up and end.
  template <class... Parameters, class... Arguments>
  void fire(void (Callback::*event)(Trainer&, Parameters...), const Arguments&... arguments) {
    call_callbacks([&](Callback& callback) { (callback.*event)(*this, arguments...); });
    if constexpr (sizeof...(Parameters) == 0) agree_after(event);
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
  /// Returns the loss of a batch that is on the device. Do not divide it by the accumulation steps.
  virtual StepOutput calculate_train_batch_loss(const Batch& batch);
  /// Runs the backward pass of `loss` divided by the length of the accumulation window.
  virtual void backward_step(const at::Tensor& loss);
  /// Clips the accumulated gradients of the Trainer's own optimizer. Called once per update.
  virtual void clip_gradients();
  /// Steps the optimizer, except in fp16 if a gradient is not finite. If `needs_closure`, the
  /// optimizer gets `evaluate_window` as its closure.
  virtual void optimizer_step();
  /// Makes one update of a registered optimizer: clips its gradients according to the run's
  /// options, steps it (in fp16 only if all of its gradients are finite) and clears the gradients.
  /// If the optimizer was stepped, steps its schedule. The gradients of each optimizer are clipped
  /// separately. Call it in an override of `optimizer_step`, or in `train_step` in a micro-step
  /// whose update is due. It may be called several times, each time after another backward pass.
  /// @throws Error that lists the names if there is no such optimizer; Error if no update is due.
  /// @note Collective under the same conditions as `Accelerator::optimizer_step`.
  void step_optimizer(std::string_view name);
  /// Whether `optimizer_step` evaluates the loss of the accumulation window again, so that the
  /// Trainer must keep the window's batches. The Trainer calls it at the start of a run. The
  /// default returns true for an LBFGS.
  virtual bool needs_closure() const;
  /// Computes the gradients of the accumulation window with the current weights, by calling
  /// `calculate_train_batch_loss` and `backward_step` for each of its batches. Returns the mean
  /// loss on this process. The first call in an update returns the result of the micro-steps that
  /// have already run. Use it as a closure: `accelerator().optimizer_step(*optimizer(), closure)`.
  /// @throws Error outside of `optimizer_step`, or unless `needs_closure()`.
  /// @note Collective.
  at::Tensor evaluate_window();
  /// Steps the scheduler if there is one. Called once per update that was made, in every run.
  virtual void scheduler_step();
  /// Clears the gradients of all optimizers after an update.
  virtual void optimizer_zero_grad();
  /// Called after the last update of an epoch, before its loss is recorded.
  virtual void train_epoch_end() {}

  // ---- Evaluation ------------------------------------------------------------------------------

  /// Called before `Callback::on_evaluation_run_start`.
  virtual void evaluation_run_start() {}
  /// Evaluates `loader` without gradients and records the mean loss. The name of the metric is
  /// `metric_name` after the prefixes of the evaluation. Afterwards restores the modes of the model
  /// and of the registered modules.
  virtual void run_eval_epoch(DataLoader& loader, std::string_view metric_name);
  /// Puts the model and the registered modules into evaluation mode.
  virtual void eval_epoch_start();
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
  /// Called before `Callback::on_training_run_end`, when `result` is known.
  virtual void training_run_end() {}

 private:
  friend class RunSnapshot;
  struct Implementation;

  void call_callbacks(c10::function_ref<void(Callback&)> call);
  void agree_after(void (Callback::*event)(Trainer&));

  std::unique_ptr<Implementation> impl_;
};

}  // namespace linkboy
