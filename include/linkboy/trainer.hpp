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
#include "linkboy/callbacks/default_callbacks.hpp"
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
#include "linkboy/run/run_config.hpp"
#include "linkboy/run/run_history.hpp"
#include "linkboy/run/step_output.hpp"
#include "linkboy/run/stop_training.hpp"
#include "linkboy/run/train_result.hpp"
#include "linkboy/scheduler.hpp"

namespace torch::optim {
class Optimizer;
}

namespace linkboy {

class RunSnapshot;

/// What a Trainer is made with, beside its model, loss and optimizer.
struct TrainerOptions {
  /// Called in this order.
  CallbackList callbacks = default_callbacks();
  /// Null for an InMemoryRunHistory.
  std::shared_ptr<RunHistory> run_history{};
  /// Device, precision and processes.
  AcceleratorOptions accelerator{};
  /// A ready Accelerator, which the Trainer uses in place of `accelerator`, if it is not null.
  std::shared_ptr<Accelerator> shared_accelerator{};
};

/// Runs the training loop; every step of it is a method to override.
///
///     linkboy::Trainer trainer(net, torch::nn::CrossEntropyLoss(), optimizer);
///     trainer.train({.train_dataset = train, .num_epochs = 8, .eval_dataset = test});
///
/// A subclass that overrides one method need not know the others. Methods named `create_`,
/// `calculate_` and `default_` return a value; all others change state. `docs/events.md` has the
/// exact order. Shares the model, the optimizer and the callbacks with the caller.
///
/// Used by one thread, but for `request_stop`.
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

  // ---- Runs ------------------------------------------------------------------------------------

  /// Trains, and evaluates after the epochs if there is evaluation data.
  ///
  /// @throws Error if an option is out of its range, before anything has changed; whatever a
  ///         callback, a step or the data throws, after `Callback::on_exception`.
  /// @note Collective.
  TrainResult train(const TrainOptions& options);

  /// Evaluates with a fresh run history in memory; returns its metrics: `evaluation_loss` and what
  /// callbacks added. A stop request leaves `evaluation_loss` out. The history and the counts of
  /// the training run before come back afterwards, so that it can still be saved.
  ///
  /// @throws Error as `train`.
  /// @note Collective.
  Metrics evaluate(const EvaluateOptions& options);

  /// Evaluates the run's evaluation data once more, with the usual events, and goes back to where
  /// the run was: for callbacks, at any event but those of a step's forward and backward pass.
  ///
  /// @throws Error if there is no evaluation data; whatever the evaluation throws.
  /// @note Collective.
  void evaluate_now(const IntermediateEvaluation& extra);

  /// Returns `calculate_predictions` of all samples, in the order of the dataset: [N, ...] on the
  /// CPU, the same on all processes. Runs in evaluation mode, without gradients and without events,
  /// and restores the model's mode.
  ///
  /// @note Collective.
  /// @throws Error if the predictions of a batch do not have a row for each of its samples.
  at::Tensor predict(const EvaluateOptions& options);

  /// Ends the run after the update in progress; in an evaluation, after the batch, or on several
  /// processes within 100 ms or 64 batches. A request made between runs ends the next one at once.
  /// The first request counts. Of several processes any may ask; all end at the same update.
  ///
  /// Any thread may call it; the overload without a message also a signal handler.
  void request_stop(StopReason reason = StopReason::stop_request) noexcept;
  /// The same with the reason in words, for `TrainResult::message`. Not for a signal handler.
  void request_stop(StopReason reason, std::string message);
  /// Whether this process was asked to stop. Any thread may call it.
  bool stop_requested() const;
  /// Why, if it was. Of several processes: what they have agreed on, which the update in progress
  /// decides; the same on all.
  std::optional<StopReason> requested_stop() const;

  // ---- Checkpoints -----------------------------------------------------------------------------

  /// Writes `model_state_dict`, `optimizer_state_dict`, `scheduler_state_dict` (if there is one),
  /// `registered_modules_state_dict` (if registered modules have tensors: a state dict for each,
  /// under its number in the order of registration) and `extras` to one file that Python's
  /// `torch.load(weights_only=True)` reads.
  ///
  /// The main process writes it.
  ///
  /// @throws Error if the file cannot be written (an old one stays), or `extras` uses one of these
  ///         names.
  /// @note Collective.
  void save_checkpoint(const std::filesystem::path& path, const StateDict& extras = {},
                       CheckpointParts parts = {});

  /// Restores what `save_checkpoint` or Python wrote in this layout; returns the extras.
  ///
  /// Loads the parts that both the file and the Trainer have. If the file has a part that the
  /// Trainer does not have (the state of a scheduler, outside of a run that has one), a line says
  /// that it was left out. Waits for an asynchronous save, whose error is left to `wait_for_saves`.
  /// All processes read the file, which they must see.
  ///
  /// @note Collective.
  /// @throws Error if a part does not fit (missing, unexpected, misshapen names are listed).
  /// Nothing
  ///         is changed then.
  StateDict load_checkpoint(const std::filesystem::path& path, CheckpointParts parts = {});

  /// Writes all that a run needs to go on into `directory`: the checkpoint's parts, epoch, update,
  /// place in the data, random number generators, run history, callbacks, and `state_dict`.
  ///
  /// Between an epoch's last update and its end, the state is that of its last update. A run goes
  /// on from it on any number of processes; on as many as before, and with batches as large, bit
  /// for bit.
  ///
  /// @note Collective; the main process writes.
  /// @throws Error unless `can_save_training_state()`, or if the files cannot be written; what an
  ///         asynchronous save before has thrown.
  void save_training_state(const std::filesystem::path& directory, SaveStateOptions options = {});

  /// Whether nothing is half done that a state would have to hold:
  /// - not within an update, nor after a run that was left within one;
  /// - from an epoch's last update to its end, only if a callback `saves_training_states()`: what
  /// the
  ///   end of an epoch changes is kept for it until the run ends;
  /// - not in `evaluate`, nor while a run is set up.
  bool can_save_training_state() const;

  /// Waits for an asynchronous save. @throws what it threw, once.
  void wait_for_saves();

  /// Restores it; `train` does so for `TrainOptions::resume_from`. Waits for an asynchronous save.
  ///
  /// @param directory  That of a state; or one that holds states, of which the newest whole one is
  ///        taken; or the name "latest" in such a one.
  /// @return False if there is no state to be the "latest".
  /// @throws Error if there is no state, if one cannot be read or all are damaged (a run that began
  ///         from the beginning would bury them), or if it does not fit this Trainer: its model,
  ///         its registered modules, or in mid-epoch its processes and batches.
  /// @note Collective.
  bool load_training_state(const std::filesystem::path& directory);

  // ---- Parts -----------------------------------------------------------------------------------

  /// The model that is trained, as the caller gave it; of several processes each has its own.
  Model& model();
  const Model& model() const;
  /// Empty if none was given.
  const LossFunction& loss_func() const;
  /// Null if none was given. Waits as `num_updates` does.
  const std::shared_ptr<torch::optim::Optimizer>& optimizer();
  /// The same without waiting.
  const std::shared_ptr<torch::optim::Optimizer>& optimizer() const;
  /// The present run's or the last one's. Owned by the Trainer; a new run replaces it. Waits as
  /// `num_updates` does.
  Scheduler* scheduler();
  /// The same without waiting.
  const Scheduler* scheduler() const;
  /// The present run's or the last one's; null in `evaluate`.
  const std::shared_ptr<DataLoader>& train_dataloader() const;
  /// That of the set that is being evaluated, else that of the first.
  const std::shared_ptr<DataLoader>& eval_dataloader() const;
  /// The metrics of the run, and its count of epochs. Of several processes each has its own.
  RunHistory& run_history();
  const RunHistory& run_history() const;
  /// Callbacks may be added or removed here, within a run as well.
  CallbackHandler& callback_handler();
  const CallbackHandler& callback_handler() const;
  /// The devices and processes that the Trainer was made for.
  Accelerator& accelerator();
  const Accelerator& accelerator() const;
  /// Where the model is trained.
  c10::Device device() const;

  /// The present run's, or the last one's.
  const RunConfig& run_config() const;
  /// How the run has ended, from `training_run_end` on.
  const TrainResult& result() const;
  /// The folder of the training state that the run resumes; empty if it began at its beginning.
  const std::filesystem::path& resumed_from() const;
  /// Updates made in this run. In fp16 on CUDA, the host knows whether an update was skipped when
  /// the device comes to it. The scheduler is stepped then: before the next update, or as soon as
  /// somebody asks for this count, `scheduler()` or `optimizer()`, which wait for it. Only the
  /// thread of the run may call these three.
  ///
  /// Those of a const Trainer do not wait: in a callback they may be one update behind. A training
  /// state is saved, with `state_dict`, when all updates are known.
  int64_t num_updates();
  /// The same without waiting.
  int64_t num_updates() const;
  /// Micro-batches of this epoch that are done.
  int64_t micro_step() const;
  /// Whether the run ends after the present epoch if nothing stops it earlier. Known from the end
  /// of the epoch's training on.
  bool is_last_epoch() const;
  /// Whether the evaluation sets, if the run has any, were evaluated at the end of the present
  /// epoch. Evaluations by `evaluate_now` do not count.
  bool is_epoch_evaluated() const;
  /// Whether `max_num_updates` ended the training of the present epoch, or of the last one,
  /// before its last batch: a longer run that is resumed trains the rest of it. Known from the end
  /// of the epoch's training on.
  bool is_epoch_cut_short() const;
  /// This process's mean loss since the training epoch began.
  const LossAverage& train_loss_average() const;
  /// This process's mean loss since the evaluation of the present set began.
  const LossAverage& eval_loss_average() const;

  /// Tracks another loss as the main one: the exact mean of `StepOutput::extras[name]`, a scalar
  /// tensor, is recorded as "classifier_loss" would be: `train_classifier_loss_epoch`,
  /// `eval_classifier_loss_epoch`. An evaluation whose steps do not have it records nothing.
  /// Before a run.
  /// @throws Error in a run, if a training step does not have it, or the name is taken or "loss".
  void track_loss(std::string name);

  /// The sets that are evaluated; callbacks may replace their loaders in `on_dataloaders_ready`.
  std::vector<EvaluationSet>& evaluation_sets();
  /// In `on_dataloaders_ready` only: what the run trains on. @throws Error elsewhere.
  void set_train_dataloader(std::shared_ptr<DataLoader> loader);

  /// The name under which a metric of the present phase belongs into the run history: `name` after
  /// "train_" or, in an evaluation, "eval_", after what else stands before it: the history's
  /// prefix, that of an extra evaluation, the name of the set.
  std::string metric_name(std::string_view name) const;
  /// Whether an evaluation is going on that `evaluate_now` has started.
  bool is_intermediate_evaluation() const;
  /// The set that is evaluated; empty if it has no name.
  const std::string& evaluation_set_name() const;
  /// 2-norm of the last update's gradients before clipping, a scalar on the device; undefined
  /// without `gradient_clip_norm`.
  const at::Tensor& gradient_norm() const;

  /// Modules beside the model (a discriminator, a perceptual loss). Each run moves them to the
  /// device before it prepares the model, and checkpoints and training states hold their parameters
  /// and buffers. Evaluations put them into evaluation mode as they do the model. Of several
  /// processes all get those of rank 0, and their buffers again with the model's. The loss
  /// function's module is one of them already.
  void register_module(std::shared_ptr<torch::nn::Module> module);
  /// In the order of registration.
  const std::vector<std::shared_ptr<torch::nn::Module>>& registered_modules() const;

  /// Calls the handlers that callbacks have for a custom event.
  void call_event(std::string_view name, const std::any& payload = {});

  /// All processes' rows along dimension 0. @note Collective.
  at::Tensor gather(const at::Tensor& tensor);

  /// Writes a line, on the main process.
  virtual void print(std::string_view line);

 protected:
  // ---- Set-up, in this order -------------------------------------------------------------------

  /// What `TrainOptions::train_dataloader_options` is laid over: shuffled, and shared between the
  /// processes, with as many batches for each.
  virtual DataLoaderOptions default_train_dataloader_options(int64_t batch_size);
  /// The same for evaluation: in order, each sample once.
  virtual DataLoaderOptions default_eval_dataloader_options(int64_t batch_size);
  /// The loader of `options.train_dataset`. Called in each process, for its part of the data.
  virtual std::shared_ptr<DataLoader> create_train_dataloader(const TrainOptions& options);
  /// The loader of `options.dataset`; called once for each evaluation set.
  virtual std::shared_ptr<DataLoader> create_eval_dataloader(const EvaluateOptions& options);
  /// Moves the model to the device, gives all processes the weights of rank 0, and has the loaders
  /// put batches on the device. @note Collective.
  virtual void prepare_model_optimizer_and_dataloaders();
  /// Works out the lengths of the run, from the loaders. @note Collective.
  virtual RunConfig create_run_config(const TrainOptions& options);
  /// Null if `options.create_scheduler_fn` is empty. `run_config` is known.
  virtual std::unique_ptr<Scheduler> create_scheduler(const TrainOptions& options);

  // ---- State -----------------------------------------------------------------------------------

  /// The members of a subclass that a resumed run needs: a hidden state, a counter. Part of each
  /// training state; each process saves and gets its own. Empty if there are none.
  virtual StateDict state_dict() const { return {}; }
  /// Takes what `state_dict` returned, when a run is resumed and all else is restored. Called only
  /// if that was not empty. On another number of processes, those beyond the saved ones get the
  /// state of the last one.
  virtual void load_state_dict(const StateDict&) {}

  // ---- Training --------------------------------------------------------------------------------

  /// Before `Callback::on_training_run_start`.
  virtual void training_run_start() {}
  /// All epochs of a run. The default body:
  ///
  ///     while (begin_epoch()) {
  ///       run_train_epoch(*train_dataloader());
  ///       evaluate_epoch();
  ///       scheduler_epoch_end();
  ///       end_epoch();
  ///     }
  ///
  /// An override calls these methods; it must end each epoch that it begins. The run also ends when
  /// `RunConfig::max_num_updates` updates are made, so that two calls of `run_train_epoch` in an
  /// epoch halve the number of epochs.
  virtual void run_training();
  /// Whether the run has another epoch. @throws StopTraining if the run is to be left.
  /// @note Collective.
  bool begin_epoch();
  /// All micro-batches of one epoch; records `train_loss_epoch`.
  virtual void run_train_epoch(DataLoader& loader);
  /// Evaluates the run's evaluation sets, if that is due after this epoch. @note Collective.
  void evaluate_epoch();
  /// Calls the callbacks, and counts the epoch. @note Collective.
  void end_epoch();
  /// Puts the model into training mode.
  virtual void train_epoch_start();
  /// One micro-step with a batch that lies on the device, and the update that it may end. The
  /// default body:
  ///
  ///     fire(&linkboy::Callback::on_train_step_start);
  ///     const linkboy::StepOutput output = forward(batch);
  ///     fire(&linkboy::Callback::on_train_step_end, batch, output);
  ///     backward(output);
  ///     if (is_update_due()) update();
  ///
  /// An override calls these methods. It should call `forward` once, which adds the loss to the
  /// epoch's mean, and fire both events, on which the built-in callbacks live. It calls
  /// `update` when that is due and only then; without it the window's gradients are dropped, which
  /// all processes must do alike. Further passes need a scope of `accelerator().autocast()` for
  /// their forward pass, and `ExecutionMode::eager`, since a graph holds the passes of `forward`
  /// and `backward`. In the micro-step that ends a window exactly one of `backward` and
  /// `backward_step` is called, once: it averages the gradients of all processes.
  virtual void train_step(const Batch& batch);
  /// Calls an event of all callbacks.
  template <class... Parameters, class... Arguments>
  void fire(void (Callback::*event)(Trainer&, Parameters...), const Arguments&... arguments) {
    call_callbacks([&](Callback& callback) { (callback.*event)(*this, arguments...); });
  }
  /// Runs `calculate_train_batch_loss` in the run's precision and execution mode, and adds the loss
  /// to the epoch's mean. @throws Error outside of `train_step`.
  StepOutput forward(const Batch& batch);
  /// Runs `backward_step` on what `forward` returned.
  void backward(const StepOutput& output);
  /// Whether the present micro-step is the last one of its accumulation window.
  bool is_update_due() const;
  /// Makes an update from the gradients of the window: clips them, steps the optimizer and the
  /// scheduler, and clears them. @throws StopTraining if the run is to be left; Error if no update
  /// is due. @note Collective.
  void update();
  /// The forward pass of one micro-batch, which lies on the device.
  /// @return `loss` not divided by the accumulation steps.
  virtual StepOutput calculate_train_batch_loss(const Batch& batch);
  /// The backward pass of `loss` / length of the accumulation window.
  virtual void backward_step(const at::Tensor& loss);
  /// Once per update, on the whole accumulated gradient.
  virtual void clip_gradients();
  /// One step of the optimizer; in fp16 none if a gradient is not finite.
  virtual void optimizer_step();
  /// Called once per update that was made, even if the run has no scheduler; steps the scheduler if
  /// there is one.
  virtual void scheduler_step();
  /// Clears the gradients, after the update.
  virtual void optimizer_zero_grad();
  /// After the last update of an epoch, before its loss is recorded.
  virtual void train_epoch_end() {}

  // ---- Evaluation ------------------------------------------------------------------------------

  /// Before `Callback::on_evaluation_run_start`.
  virtual void evaluation_run_start() {}
  /// Evaluates `loader`, without gradients, and records the mean loss as `metric_name`, with what
  /// stands before the present evaluation's metrics. The modes of the model and of the registered
  /// modules are restored.
  virtual void run_eval_epoch(DataLoader& loader, std::string_view metric_name);
  /// Puts the model and the registered modules into evaluation mode.
  virtual void eval_epoch_start();
  /// The forward pass of one evaluation batch, which lies on the device, without gradients.
  virtual StepOutput calculate_eval_batch_loss(const Batch& batch);
  /// What `predict` returns for one batch, which lies on the device: [batch.size(), ...]. Override
  /// it for a model that takes more than `batch.input()`, or that does not return one tensor.
  /// Called in evaluation mode without gradients.
  virtual at::Tensor calculate_predictions(const Batch& batch);
  /// After the last batch of a set, before its loss is recorded.
  virtual void eval_epoch_end() {}
  /// Before `Callback::on_evaluation_run_end`.
  virtual void evaluation_run_end() {}

  // ---- End -------------------------------------------------------------------------------------

  /// Called once per epoch, after the evaluation, even if the run has no scheduler; gives the
  /// metrics to the scheduler if there is one.
  virtual void scheduler_epoch_end();
  /// Before `Callback::on_training_run_epoch_end`.
  virtual void training_run_epoch_end() {}
  /// Before `Callback::on_training_run_end`; `result` is known.
  virtual void training_run_end() {}

 private:
  friend class RunSnapshot;
  struct Implementation;

  void call_callbacks(c10::function_ref<void(Callback&)> call);

  std::unique_ptr<Implementation> impl_;
};

}  // namespace linkboy
