#pragma once

#include <c10/util/Metaprogramming.h>
#include <c10/util/TypeList.h>

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "linkboy/callbacks/progress_bar.hpp"
#include "linkboy/callbacks/save_training_state.hpp"
#include "linkboy/cli/command_line.hpp"
#include "linkboy/cli/logger.hpp"
#include "linkboy/compile/compiled_steps.hpp"
#include "linkboy/export.hpp"
#include "linkboy/tracking/track_run.hpp"
#include "linkboy/trainer.hpp"

namespace linkboy::cli {

/// Configuration of a program that uses `run`. If the type of a member has fields, the fields are
/// options with the member's name as a prefix: `--train.num_epochs`, `--accelerator.device`.
struct RunSettings {
  /// Options of the training run. The data comes from the program, and the schedule from
  /// `scheduler`.
  TrainOptions train{};
  /// Options of the training loader: `--train_dataloader.num_workers`.
  DataLoaderOptions train_dataloader{};
  /// Options of the evaluation loaders.
  DataLoaderOptions eval_dataloader{};
  /// Device, precision and process options. Nested structs also have options, such as
  /// `--accelerator.grad_scaler.init_scale` and `--accelerator.distributed.zero_stage`.
  AcceleratorOptions accelerator{};
  /// Options of `--train.execution_mode compiled`.
  CompileOptions compile{};
  /// The optimizer, such as `adamw({.lr = 0.01})`.
  NamedSettings optimizer{"adamw", {}};
  /// The schedule, such as `cosine()`.
  std::optional<NamedSettings> scheduler{};
  /// The callbacks, such as `early_stopping({.patience = 3})`. A callback replaces the default
  /// callback of the same name.
  std::vector<NamedSettings> callbacks{};
  /// Metrics to compute in every evaluation, such as `accuracy({.num_classes = 10})`. In text, the
  /// additional key `as` sets the name under which the value is recorded:
  /// `accuracy:num_classes=10,top_k=5,as=top5`.
  std::vector<NamedSettings> metrics{};
  /// The trackers, such as `csv_tracker("run.csv")`.
  std::vector<NamedSettings> trackers{};
  /// Level of the printed messages, and the log file, whose path is relative to `output_dir`:
  /// `--log.file run.log`.
  LoggerOptions log{};
  /// Options for recording the run with the trackers; `config` receives the configuration.
  TrackRunOptions track_run{};
  /// When to save training states, and the folder for them in `output_dir`. Unless an `every_n_*`
  /// option or `save_at_decays` is set, or the run is resumed, a state is saved only if a signal or
  /// another stop request ends the run.
  SaveTrainingStateOptions states{.directory = "states"};

  /// Seed of the weights, the shuffling and the augmentation.
  uint64_t seed = 0;
  /// Number of LibTorch's threads in this process; 0 uses LibTorch's default.
  int64_t num_threads = 0;
  /// Whether to use `default_callbacks`, which show progress and metrics and stop the run at a NaN.
  /// If false, `low_overhead_callbacks` replace them.
  bool default_callbacks = true;
  /// How the default callbacks show progress; `none` also turns off the printing of metrics.
  ProgressBarOptions::Mode progress = ProgressBarOptions::Mode::automatic;
  /// Folder of the final checkpoint, the training states and the log file. Paths of callbacks and
  /// trackers are relative to the working directory.
  std::filesystem::path output_dir = "output";
  /// File in `output_dir` for the final checkpoint of the model, the optimizer and the scheduler;
  /// "none" disables it.
  std::optional<std::filesystem::path> checkpoint = "checkpoint.pt";
  /// The training state to resume from: its folder, a folder of states, or "latest". "latest" means
  /// the newest state in `states.directory`; if there is none, the run starts from the beginning.
  std::optional<std::filesystem::path> resume_from{};
  /// File with the model's initial weights: a state dict or a checkpoint (.pt or .safetensors),
  /// also from Python. In a checkpoint, the weights may be under "model_state_dict", "state_dict"
  /// or "model".
  std::optional<std::filesystem::path> init_from{};
  /// The location of the weights in the `init_from` file, if it is different: keys joined by dots,
  /// such as "checkpoint.net".
  std::string init_key{};
  /// A Trainer checkpoint from which the model and the optimizer continue. The learning rate comes
  /// from the configuration.
  std::optional<std::filesystem::path> load_checkpoint{};

  LINKBOY_FIELDS(seed, num_threads, default_callbacks, progress, output_dir, checkpoint,
                 resume_from, init_from, init_key, load_checkpoint);
};

/// The data of a program that uses `run`. Only the first member is required.
struct RunData {
  /// Training data.
  Dataset train_dataset{};
  /// Data for evaluations; see TrainOptions.
  Dataset eval_dataset{};
  /// Further evaluation data, by name.
  std::vector<NamedDataset> more_eval_datasets{};
  /// Data to evaluate once after training; the program prints the metrics.
  Dataset test_dataset{};
  /// Transform of the training batches.
  Transform train_transform{};
  /// Transform of the batches in evaluations and in the test.
  Transform eval_transform{};
  /// Makes batches from single samples, in training, evaluations and the test.
  CollateFn collate_fn{};
};

/// Result of a program that uses `run`.
struct RunResult {
  /// Outcome of the training. If `reason` is `nan`, nothing was saved or tested.
  TrainResult training;
  /// Metrics of the test data; empty if there is no test data or the run received a stop request.
  Metrics test_metrics{};
};

/// Settings of `run` in addition to the model and the data. Every member has a default.
struct RunProgram {
  /// Description of the program in one or two sentences; `--help` begins with it.
  std::string description = "Trains a model.";
  /// Defaults of the configuration.
  RunSettings defaults = RunSettings();  // GCC 14 at -O3 warns about a destructor after {}
  /// The loss function. May be empty if `make_trainer` creates a Trainer that computes its losses
  /// itself.
  LossFunction loss_function{};
  /// Creates the Trainer. Must not be empty.
  std::function<std::unique_ptr<Trainer>(Model, LossFunction,
                                         std::shared_ptr<torch::optim::Optimizer>, TrainerOptions)>
      make_trainer =
          [](auto... arguments) { return std::make_unique<Trainer>(std::move(arguments)...); };
  /// The program's own metrics, which each evaluation records in addition to those of the
  /// configuration.
  MetricCollection metrics{};
  /// Adds the program's own options and aliases.
  std::function<void(CommandLine&)> add_options{};
  /// Returns the program's own callbacks. Called when the configuration is complete.
  std::function<CallbackList(const RunSettings&, const Model&)> make_callbacks{};
  /// Called after training, saving and testing, on each process. If it throws, the program fails
  /// with that error.
  std::function<void(Trainer&, const RunResult&)> after_training{};
};

namespace detail {

/// The type of the first parameter of a lambda or a function pointer.
template <class F>
using ArgumentOf = std::remove_cvref_t<c10::guts::typelist::head_with_default_t<
    NoOptions, typename c10::guts::infer_function_traits_t<F>::parameter_types>>;

template <class F, class Options>
auto call_with(const F& function, const Options& options) {
  if constexpr (std::is_same_v<Options, NoOptions>) {
    return function();
  } else {
    return function(options);
  }
}

/// A program together with its model and data options.
struct LINKBOY_API RunParts {
  RunProgram program;
  std::function<void(CommandLine&)> add_model_and_data_options;
  std::function<Model()> make_model;
  std::function<RunData()> make_data;
};

LINKBOY_API int run(int argc, const char* const* argv, RunParts parts) noexcept;

}  // namespace detail

/// Runs a complete training program: reads the command line and the config file, trains, tests and
/// saves.
///
///     struct NetOptions { int64_t width = 64; LINKBOY_FIELDS(width); };
///     struct DataOptions { std::filesystem::path folder = "data"; LINKBOY_FIELDS(folder); };
///
///     int main(int argc, char** argv) {
///       return linkboy::cli::run(
///           argc, argv, [](const NetOptions& options) { return make_net(options.width); },
///           [](const DataOptions& options) {
///             return linkboy::cli::RunData{.train_dataset = read(options.folder / "train")};
///           },
///           {.loss_function = torch::nn::CrossEntropyLoss()});
///     }
///
/// Run the program as follows:
///
///     ./train --model.width 128 --data.folder /data --train.num_epochs 8 --optimizer sgd:lr=0.1
///     ./train --scheduler cosine --metrics accuracy:num_classes=10
///     ./train --callbacks time-limit:max_time=5min
///     ./train --print-config > run.json; ./train --config run.json --resume_from latest
///
/// The LINKBOY_FIELDS of the arguments of `make_model` and `make_data` become options with the
/// prefixes `model` and `data`; both functions may also have no parameter. Frequently used options
/// have short names: `--epochs`, `--max-updates`, `--batch-size`, `--eval-batch-size`, `--lr`,
/// `--workers`, `--save-every-updates`, `--save-every-epochs`. For other options, the end of the
/// name is sufficient if no other name has the same ending: `--zero_stage 1`, `--device cpu`.
///
/// A training state contains the configuration as text ("linkboy::cli::RunConfiguration" among its
/// callbacks). A run that resumes from it prints the settings that have changed. A signal stops the
/// run in an orderly way: the program still saves the final training state, if configured, and the
/// checkpoint.
///
/// @return The program's exit status: 0 for success, 1 for an error, 2 for wrong usage, 128 + N
///         after signal N.
template <class MakeModel, class MakeData>
int run(int argc, const char* const* argv, MakeModel make_model, MakeData make_data,
        RunProgram program = {}) {
  auto model = std::make_shared<detail::ArgumentOf<MakeModel>>();
  auto data = std::make_shared<detail::ArgumentOf<MakeData>>();
  return detail::run(
      argc, argv,
      {.program = std::move(program),
       .add_model_and_data_options =
           [=](CommandLine& command_line) {
             command_line.add_group("Model").add_fields("model", model.get());
             command_line.add_group("Data").add_fields("data", data.get());
           },
       .make_model = [=] { return Model(detail::call_with(make_model, *model)); },
       .make_data = [=]() -> RunData { return detail::call_with(make_data, *data); }});
}

}  // namespace linkboy::cli
