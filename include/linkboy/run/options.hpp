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
#include "linkboy/scheduler.hpp"
#include "linkboy/util/text_options.hpp"

namespace linkboy {

/// How the operations of a training step are launched.
enum class ExecutionMode {
  /// Each operation is launched as the loop comes to it.
  eager,
  /// Forward and backward of a step are recorded as a CUDA graph after three steps, and replayed
  /// from then on, which spares the launches. The losses are those of eager, in every bit. What it
  /// asks for: all batches have the same shapes (a last one that has not is left out, and that is
  /// said, unless `drop_last` is set); `calculate_train_batch_loss` and `backward_step` do the same
  /// each time and never look at a number of the device; what they return may be overwritten by the
  /// next step. On the CPU the same rules hold, and nothing is faster.
  graph,
};
LINKBOY_ENUM_NAMES(ExecutionMode, eager, graph)

/// Data to evaluate on, where there is more than one kind.
struct NamedDataset {
  /// Stands in the names of its metrics: "rare" gives `rare_eval_loss_epoch`. Not empty.
  std::string name{};
  /// Required.
  Dataset dataset{};
};

/// What `Trainer::train` needs to know. Name what differs from the defaults:
/// `trainer.train({.train_dataset = data, .num_epochs = 8})`.
struct TrainOptions {
  /// Required, unless `train_dataloader` is given or `Trainer::create_train_dataloader` is
  /// overridden.
  Dataset train_dataset{};

  /// A ready loader instead of `train_dataset`, whose batches, order and workers are the loader's:
  /// `per_device_batch_size` does not apply to it. A loader that gives all batches is shared
  /// between the processes (`DataLoader::shared`). Together with `train_dataset`,
  /// `train_dataloader_options` or `collate_fn` it is an OptionError.
  std::shared_ptr<DataLoader> train_dataloader{};

  /// Passes over the data. At least 1. Required unless `max_num_updates` is given.
  std::optional<int64_t> num_epochs{};

  /// Evaluated after each epoch; empty means no evaluation.
  Dataset eval_dataset{};

  /// A ready loader instead of `eval_dataset`; it is shared between the processes, too. Together
  /// with `eval_dataset` it is an OptionError, and so are `eval_dataloader_options` without
  /// `more_eval_datasets`.
  std::shared_ptr<DataLoader> eval_dataloader{};

  /// Evaluated after `eval_dataset`, one after the other, each with metrics of its own.
  std::vector<NamedDataset> more_eval_datasets{};

  /// Samples per batch and device; of an evaluation's batches, too, unless
  /// `eval_dataloader_options` has another `batch_size`. At least 1.
  int64_t per_device_batch_size = 8;

  /// Updates in the whole run. At least 1. If given it replaces `num_epochs`.
  std::optional<int64_t> max_num_updates{};

  /// Micro-batches whose gradients make one update. At least 1. A last window of an epoch that
  /// has fewer is divided by what it has.
  int64_t gradient_accumulation_steps = 1;

  /// Largest absolute value of a gradient element, applied once per update. Positive.
  std::optional<double> gradient_clip_value{};

  /// Largest 2-norm of all gradients together, applied once per update, after the value clip.
  /// Positive; infinity measures the norm (`Trainer::gradient_norm`) and changes nothing.
  std::optional<double> gradient_clip_norm{};

  /// Empty means that the learning rate stays as it is.
  CreateSchedulerFn create_scheduler_fn{};

  /// Laid over `Trainer::default_train_dataloader_options`, field by field. Another
  /// `batch_size` than `per_device_batch_size` is an OptionError.
  DataLoaderOptions train_dataloader_options{};
  /// Laid over `Trainer::default_eval_dataloader_options`, field by field.
  DataLoaderOptions eval_dataloader_options{};

  /// Makes batches of single samples, in training and evaluation; for one of them alone, give it in
  /// the options of its loader (in both places `train` throws OptionError). Several loader workers
  /// call it at the same time.
  CollateFn collate_fn{};

  /// False continues the metrics and the epoch count of the run before; exactly the epochs asked
  /// for are run all the same.
  bool reset_run_history = true;

  /// The run goes on where a training state was saved: a folder that `save_training_state` wrote,
  /// one that holds such folders (the newest whole one is taken), or the name "latest" in it, which
  /// starts from the beginning if there is none.
  std::optional<std::filesystem::path> resume_from{};

  /// Resumes although the saved run had another schedule, or one with other lengths (a shorter
  /// run): the values continue from the saved update on the new curve, perhaps with a jump.
  bool allow_changed_schedule_length = false;

  /// Evaluates after every n-th epoch and after the last. At least 1.
  int64_t evaluate_every_n_epochs = 1;

  /// Evaluates before the first update as well; the metrics are `initial_eval_loss_epoch` and so
  /// on. A resumed run does not.
  bool evaluate_before_training = false;

  /// Called in this run alone, beside those of the Trainer and by the same phases; each gets
  /// `on_init_end` first. Not null, and no name twice.
  CallbackList callbacks{};

  /// Of the training steps.
  ExecutionMode execution_mode = ExecutionMode::eager;

  /// Weights the micro-steps of an update by their `StepOutput::batch_size`: the gradient is that
  /// of the mean over all samples (or tokens) of the accumulation window and of all processes. With
  /// false each micro-step of each process counts the same, as in PyTorch, which differs if some
  /// have more tokens than others. Not together with ExecutionMode::graph, local SGD or a
  /// GradientCommHook.
  bool weight_by_batch_size = false;

  LINKBOY_FIELDS(num_epochs, max_num_updates, per_device_batch_size, gradient_accumulation_steps,
                 gradient_clip_value, gradient_clip_norm, evaluate_every_n_epochs,
                 evaluate_before_training, reset_run_history, allow_changed_schedule_length,
                 weight_by_batch_size, execution_mode);
};

/// What `Trainer::evaluate` and `Trainer::predict` need to know.
struct EvaluateOptions {
  /// Required, unless `dataloader` is given or `Trainer::create_eval_dataloader` is overridden.
  Dataset dataset{};

  /// A ready loader instead of `dataset`, whose batches, order and workers are the loader's.
  /// Together with `dataset`, `dataloader_options` or `collate_fn` it is an OptionError. On several
  /// processes `predict` needs one that `make_data_loader` made of a dataset.
  std::shared_ptr<DataLoader> dataloader{};

  /// Samples per batch and device. At least 1.
  int64_t per_device_batch_size = 8;

  /// Laid over `Trainer::default_eval_dataloader_options`, field by field. With another
  /// `batch_size`, or a second `collate_fn`, `evaluate` and `predict` throw OptionError.
  DataLoaderOptions dataloader_options{};

  /// Makes batches of single samples.
  CollateFn collate_fn{};

  /// As TrainOptions::callbacks.
  CallbackList callbacks{};
};

}  // namespace linkboy
