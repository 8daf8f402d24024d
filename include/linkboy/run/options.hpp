#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "linkboy/callback.hpp"
#include "linkboy/data/data_loader.hpp"
#include "linkboy/data/dataset.hpp"
#include "linkboy/run/step_executor.hpp"
#include "linkboy/scheduler.hpp"
#include "linkboy/util/text_options.hpp"

namespace linkboy {

/// How the operations of a training step are launched.
enum class ExecutionMode {
  /// Launches each operation when the loop reaches it.
  eager,
  /// Records the forward and backward pass of a step as a CUDA graph after three steps. From then
  /// on, replays the graph, which reduces launch overhead. The losses are bit-identical to those of
  /// eager. Requires one process, equal shapes of all batches, and that
  /// `calculate_train_batch_loss` and `backward_step` do the same work each time and never read a
  /// value from the device. The next step may overwrite their results. A smaller last batch is
  /// dropped, with a message unless `drop_last` is set. On the CPU, the same rules apply, but there
  /// is no speedup.
  graph,
  /// Executes the steps of training and evaluation with `TrainOptions::create_step_executor_fn`:
  /// `compiled_steps()` of the component linkboy::compile, which compiles them.
  compiled,
};
LINKBOY_ENUM_NAMES(ExecutionMode, eager, graph, compiled)

/// An additional evaluation dataset with a name.
struct NamedDataset {
  /// Part of the names of its metrics: "rare" produces `rare_eval_loss_epoch`. Must not be empty.
  std::string name{};
  /// The data; required.
  Dataset dataset{};
};

/// Options of `Trainer::train`. Set only those that differ from the defaults:
/// `trainer.train({.train_dataset = data, .num_epochs = 8})`.
struct TrainOptions {
  // ---- Data -------------------------------------------------------------------------------------

  /// Training data. Required, unless `train_dataloader` is set or
  /// `Trainer::create_train_dataloader` is overridden.
  Dataset train_dataset{};

  /// A loader to use instead of `train_dataset`. It determines the batches, their order and the
  /// workers; `per_device_batch_size` does not apply. If the loader returns all batches, the
  /// processes share it (see `DataLoader::shared`). Combining it with `train_dataset`,
  /// `train_dataloader_options` or `collate_fn` is an OptionError.
  std::shared_ptr<DataLoader> train_dataloader{};

  /// Data for evaluations; see `evaluate_every_n_epochs`. If it and the other evaluation data are
  /// empty, there is no evaluation.
  Dataset eval_dataset{};

  /// A loader to use instead of `eval_dataset`; the processes share it like `train_dataloader`.
  /// Combining it with `eval_dataset` is an OptionError, as is combining it with
  /// `eval_dataloader_options` if `more_eval_datasets` is empty.
  std::shared_ptr<DataLoader> eval_dataloader{};

  /// Data to evaluate after `eval_dataset`, in this order, each with separate metrics.
  std::vector<NamedDataset> more_eval_datasets{};

  /// Samples per batch and device; at least 1. Also applies to evaluation batches, unless
  /// `eval_dataloader_options` sets another `batch_size`.
  int64_t per_device_batch_size = 8;

  /// Overrides `Trainer::default_train_dataloader_options` field by field. A `batch_size` that
  /// differs from `per_device_batch_size` is an OptionError.
  DataLoaderOptions train_dataloader_options{};

  /// Overrides `Trainer::default_eval_dataloader_options` field by field.
  DataLoaderOptions eval_dataloader_options{};

  /// Makes batches from single samples, in training and evaluation. To use it for only one of the
  /// two, set it in the options of that loader; setting it in both places is an OptionError.
  /// Several loader workers call it at the same time.
  CollateFn collate_fn{};

  // ---- Length -----------------------------------------------------------------------------------

  /// Number of passes over the data; at least 1. Required unless `max_num_updates` is set.
  std::optional<int64_t> num_epochs{};

  /// Number of updates in the entire run; at least 1. Overrides `num_epochs` if set.
  std::optional<int64_t> max_num_updates{};

  // ---- Update -----------------------------------------------------------------------------------

  /// Number of micro-steps per update; at least 1. If the last accumulation window of an epoch is
  /// shorter, its gradients are divided by its actual length.
  int64_t gradient_accumulation_steps = 1;

  /// Largest absolute value of a gradient element, applied once per update; must be positive.
  std::optional<double> gradient_clip_value{};

  /// Largest 2-norm of all gradients together, applied once per update, after the value clip; must
  /// be positive. Infinity measures the norm (`Run::gradient_norm`) without clipping.
  std::optional<double> gradient_clip_norm{};

  /// If true, weights the micro-steps of an update by `StepOutput::batch_size`: the gradient is
  /// that of the mean over all samples (or tokens) of the accumulation window on all processes. If
  /// false, every micro-step of every process has the same weight, as in PyTorch; the results
  /// differ if some micro-steps have more tokens than others. Cannot be combined with
  /// ExecutionMode::graph, local SGD, a GradientCommHook, registered optimizers or an LBFGS.
  bool weight_by_batch_size = false;

  /// Creates the scheduler of the run. If it is empty, the learning rate stays constant.
  CreateSchedulerFn create_scheduler_fn{};

  /// How the training steps are launched.
  ExecutionMode execution_mode = ExecutionMode::eager;

  /// Creates the executors of ExecutionMode::compiled, which requires it; the other modes ignore
  /// it.
  CreateStepExecutorFn create_step_executor_fn{};

  // ---- Evaluation -------------------------------------------------------------------------------

  /// Number of epochs between evaluations; at least 1. The last epoch is always evaluated.
  int64_t evaluate_every_n_epochs = 1;

  /// If true, also evaluates before the first update. The names of these metrics have the prefix
  /// "initial_": `initial_eval_loss_epoch`. A resumed run does not repeat this evaluation.
  bool evaluate_before_training = false;

  // ---- The run before, and the run to resume ----------------------------------------------------

  /// If false, continues the metrics and the epoch count of the previous run. The number of epochs
  /// to train is the same in both cases.
  bool reset_run_history = true;

  /// The training state from which the run resumes: a folder that `save_training_state` wrote, a
  /// folder of such folders (the newest complete one is used), or `<folder>/latest`. With
  /// `<folder>/latest` the run starts from the beginning if there is no state.
  std::optional<std::filesystem::path> resume_from{};

  /// If true, resumes even if the saved run had another schedule, or the same one with other
  /// lengths (for example, because it was shorter or had larger batches). The values continue from
  /// the saved update on the new curve, possibly with a jump. A schedule cannot be added or
  /// removed.
  bool allow_changed_schedule_length = false;

  // ---- Callbacks --------------------------------------------------------------------------------

  /// Callbacks for this run only. They are called together with those of the Trainer, ordered by
  /// phase; each receives `on_init_end` first. Must not contain null or a callback whose name is
  /// already taken.
  CallbackList callbacks{};

  LINKBOY_FIELDS(per_device_batch_size, num_epochs, max_num_updates, gradient_accumulation_steps,
                 gradient_clip_value, gradient_clip_norm, weight_by_batch_size, execution_mode,
                 evaluate_every_n_epochs, evaluate_before_training, reset_run_history,
                 allow_changed_schedule_length);
};

/// Options of `Trainer::evaluate` and `Trainer::predict`.
struct EvaluateOptions {
  /// The data. Required, unless `dataloader` is set or `Trainer::create_eval_dataloader` is
  /// overridden.
  Dataset dataset{};

  /// A loader to use instead of `dataset`. It determines the batches, their order and the workers.
  /// Combining it with `dataset`, `dataloader_options` or `collate_fn` is an OptionError. With
  /// several processes, `predict` requires a loader that `make_data_loader` created from a dataset.
  std::shared_ptr<DataLoader> dataloader{};

  /// Samples per batch and device; at least 1.
  int64_t per_device_batch_size = 8;

  /// Overrides `Trainer::default_eval_dataloader_options` field by field. A `batch_size` that
  /// differs from `per_device_batch_size` is an OptionError, and so is setting `collate_fn` in both
  /// places.
  DataLoaderOptions dataloader_options{};

  /// Makes batches from single samples.
  CollateFn collate_fn{};

  /// Callbacks for this run only; see TrainOptions::callbacks.
  CallbackList callbacks{};
};

}  // namespace linkboy
