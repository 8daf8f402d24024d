// The options of `cli::run`, with the help texts that are not in the options structs.

#include "cli/run_options.hpp"

#include <algorithm>
#include <utility>

#include "linkboy/callbacks/callback_factory.hpp"
#include "linkboy/metrics/metric_factory.hpp"
#include "linkboy/run/optimizer_factory.hpp"
#include "linkboy/schedulers/scheduler_factory.hpp"
#include "linkboy/tracking/tracker_factory.hpp"

namespace linkboy::cli::detail {
namespace {

constexpr FieldHelp kTrainHelp[] = {
    {"num_epochs", "Number of passes over the training data; at least 1."},
    {"max_num_updates", "Total number of updates; overrides num_epochs."},
    {"per_device_batch_size", "Samples per batch and device; at least 1."},
    {"gradient_accumulation_steps", "Micro-steps per update; at least 1."},
    {"gradient_clip_value", "Clips each gradient element to this absolute value; above 0."},
    {"gradient_clip_norm", "Clips the 2-norm of all gradients together to this value; above 0."},
    {"evaluate_every_n_epochs", "Epochs between evaluations; at least 1."},
    {"evaluate_before_training", "Whether to also evaluate before the first update."},
    {"reset_run_history", "Whether the run starts with an empty run history."},
    {"allow_changed_schedule_length",
     "Whether to resume even if the schedule or its lengths have changed."},
    {"weight_by_batch_size",
     "Whether the micro-steps of an update are weighted by their numbers of samples."},
    {"execution_mode", "Launches operations one by one, or replays a CUDA graph of the step."},
};

constexpr FieldHelp kLoaderHelp[] = {
    {"batch_size", "Samples per batch and device; none: train.per_device_batch_size."},
    {"shuffle", "Whether each epoch has a different order; none: true for training only."},
    {"drop_last", "Whether to drop an incomplete last batch; none: false."},
    {"num_workers",
     "Threads that prepare batches in advance; none: 0 on the CPU, otherwise up to 2."},
    {"prefetch_factor", "Batches that each worker prepares in advance; at least 1; none: 2."},
    {"pin_memory", "Whether batches are in page-locked memory; none: true with a GPU."},
    {"timeout", "Longest wait for a worker in seconds; none or 0: no limit."},
    {"seed", "Seed of the shuffle and the transforms; none: the program's seed."},
    {"even_batches",
     "Whether all ranks get the same number of full batches; none: true for training only."},
};

constexpr FieldHelp kAcceleratorHelp[] = {
    {"device", "auto, cpu, cuda or cuda:N; auto prefers CUDA."},
    {"precision", "Precision in which the losses are computed."},
    {"channels_last", "Whether images and filters have their channels last in memory."},
    {"deterministic", "Whether only deterministic algorithms are allowed."},
};

constexpr FieldHelp kGradScalerHelp[] = {
    {"init_scale", "Initial scale of the loss for fp16; above 0."},
    {"growth_factor", "Factor by which the scale grows; above 1."},
    {"backoff_factor", "Factor by which the scale falls after an overflow; between 0 and 1."},
    {"growth_interval", "Updates without an overflow before the scale grows; at least 1."},
};

constexpr FieldHelp kDistributedHelp[] = {
    {"backend", "Library that transfers tensors between processes."},
    {"timeout", "Longest wait for other processes; above 0."},
    {"bucket_cap_mb", "Size in MiB of the buckets in which gradients are sent; above 0."},
    {"find_unused_parameters",
     "Whether to search each step for parameters that do not contribute to the loss."},
    {"static_graph", "Declares that each step uses the same parameters in the same order."},
    {"gradient_as_bucket_view",
     "Whether gradients are views of the buffers that are sent; none: true."},
    {"broadcast_buffers", "Whether all processes use rank 0's buffers in each update."},
    {"compression", "Type in which gradients are sent; none: their own."},
    {"local_sgd_interval", "Averages weights every N updates instead of gradients; 0 disables it."},
    {"zero_stage",
     "ZeRO stage: 1 divides the optimizer's state among ranks, 2 also the gradients; 0: disabled."},
};

constexpr FieldHelp kTrackRunHelp[] = {
    {"name", "Name of the run in the trackers."},
    {"every_n_updates", "Updates between two records; at least 1."},
    {"histograms_every_n_epochs",
     "Epochs between histograms of weights and gradients; none: no histograms."},
    {"flush_seconds", "Seconds of records that a crash can lose; not negative."},
};

constexpr FieldHelp kStatesHelp[] = {
    {"directory", "Folder for training states, in output_dir."},
    {"every_n_updates", "Updates between training states; at least 1."},
    {"every_n_epochs", "Epochs between training states; at least 1."},
    {"every_n_minutes", "Minutes between training states; above 0."},
    {"save_at_end", "Whether to save a training state when the run ends."},
    {"save_at_decays", "Whether to save before and after each decay of a wsd schedule."},
    {"initial_checkpoint",
     "Checkpoint or training state from which weights, optimizer and schedule start."},
    {"keep_last", "Training states to keep; at least 1; none: all."},
    {"asynchronous", "Whether to write training states on a background thread."},
};

constexpr FieldHelp kLogHelp[] = {
    {"level", "Lowest level that is logged."},
    {"file", "File in output_dir to append messages to; {rank} is replaced with the rank."},
    {"print", "Whether messages are also printed."},
};

constexpr FieldHelp kProgramHelp[] = {
    {"seed", "Seed of the weights, the shuffle and the augmentation."},
    {"num_threads", "LibTorch's threads in each process; 0: LibTorch's default."},
    {"default_callbacks",
     "Whether to show progress and metrics, and to stop if a loss is NaN or infinite."},
    {"progress", "How progress is shown; none also hides the metrics."},
    {"output_dir", "Folder for all files that the program writes."},
    {"checkpoint", "File in output_dir for the final checkpoint; none: no file."},
    {"resume_from", "Training state to resume from: its folder, a folder of states, or latest."},
    {"init_from", "File with initial weights, .pt or .safetensors, also from Python."},
    {"init_key", "Keys of the weights in the init_from file, joined by dots."},
    {"load_checkpoint", "Checkpoint from which to load the model and the optimizer."},
};

TextSettings options_of_metric(const std::string& name) {
  TextSettings options = metric_options(name);
  options.emplace_back(kRecordedName, recorded_name(name));
  return options;
}

}  // namespace

std::string recorded_name(std::string metric) {
  std::replace(metric.begin(), metric.end(), '-', '_');
  return metric;
}

void add_options(CommandLine& command_line, RunSettings& settings) {
  command_line.add_group("Training").add_fields("train", &settings.train, kTrainHelp);
  command_line.add_group("Loaders")
      .add_fields("train_dataloader", &settings.train_dataloader, kLoaderHelp)
      .add_fields("eval_dataloader", &settings.eval_dataloader, kLoaderHelp);
  command_line.add_group("Device, precision and processes")
      .add_fields("accelerator", &settings.accelerator, kAcceleratorHelp)
      .add_fields("accelerator.grad_scaler", &settings.accelerator.grad_scaler, kGradScalerHelp)
      .add_fields("accelerator.distributed", &settings.accelerator.distributed, kDistributedHelp);
  command_line.add_group("Optimizer, scheduler, callbacks, metrics and trackers")
      .add_named("optimizer", &settings.optimizer, {optimizer_names(), optimizer_options},
                 "Optimizer.")
      .add_named("scheduler", &settings.scheduler, {scheduler_names(), scheduler_options},
                 "Learning-rate schedule; none keeps the rate constant.")
      .add_named_list("callbacks", &settings.callbacks, {callback_names(), callback_options},
                      "Callback to add; it replaces a default callback of the same name.")
      .add_named_list("metrics", &settings.metrics, {metric_names(), options_of_metric},
                      "Metric to compute in every evaluation.")
      .add_named_list("trackers", &settings.trackers, {tracker_names(), tracker_options},
                      "Tracker that records the run.")
      .add_fields("track_run", &settings.track_run, kTrackRunHelp);
  command_line.add_group("Program")
      .add_fields("states", &settings.states, kStatesHelp)
      .add_fields("log", &settings.log, kLogHelp)
      .add_fields("", &settings, kProgramHelp);
  for (const auto& [alias, name] :
       {std::pair{"epochs", "train.num_epochs"}, std::pair{"max-updates", "train.max_num_updates"},
        std::pair{"batch-size", "train.per_device_batch_size"},
        std::pair{"eval-batch-size", "eval_dataloader.batch_size"},
        std::pair{"workers", "train_dataloader.num_workers"}, std::pair{"lr", "optimizer.lr"},
        std::pair{"save-every-updates", "states.every_n_updates"},
        std::pair{"save-every-epochs", "states.every_n_epochs"}}) {
    command_line.add_alias(alias, name);
  }
}

}  // namespace linkboy::cli::detail
