#pragma once

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
#include "linkboy/callbacks/track_run.hpp"
#include "linkboy/cli/command_line.hpp"
#include "linkboy/cli/logger.hpp"
#include "linkboy/export.hpp"
#include "linkboy/trainer.hpp"

namespace linkboy::cli {

/// Everything that the configuration of a program of `run` says. Each member below that is not text
/// itself has a group of options of its own name: `--train.num_epochs`, `--accelerator.device`.
struct RunSettings {
  /// How to train. The data comes from the program.
  TrainOptions train{};
  /// Of the training loader: `--train_dataloader.num_workers`.
  DataLoaderOptions train_dataloader{};
  /// Of the evaluation loaders.
  DataLoaderOptions eval_dataloader{};
  /// Device and precision; `--accelerator.grad_scaler.init_scale` and
  /// `--accelerator.distributed.zero_stage` are options of its parts.
  AcceleratorOptions accelerator{};
  /// As `make_optimizer_fn` reads it.
  NamedSettings optimizer{.name = "adamw"};
  /// As `make_scheduler_fn` reads it.
  std::optional<NamedSettings> scheduler{};
  /// As `make_callback` reads them. One replaces the default callback of its name.
  std::vector<NamedSettings> callbacks{};
  /// As `make_metric` reads them; measured in every evaluation. A further key `as` is the name
  /// under which the value is recorded: `accuracy:num_classes=10,top_k=5,as=top5`.
  std::vector<NamedSettings> metrics{};
  /// As `make_tracker` reads them.
  std::vector<NamedSettings> trackers{};
  /// What is printed, and the log file, whose path is below `output_dir`: `--log.file run.log`.
  LoggerOptions log{};
  /// How the trackers record the run; `config` gets the configuration.
  TrackRunOptions track_run{};
  /// When training states are saved, in `directory` below `output_dir`; none are unless one of
  /// these says when, or the run is resumed.
  SaveTrainingStateOptions states{.directory = "states"};

  /// Seed of the weights, the shuffling and the augmentation.
  uint64_t seed = 0;
  /// LibTorch's threads in this process; 0 leaves that to LibTorch.
  int64_t num_threads = 0;
  /// Whether the run shows progress and metrics and stops at a NaN: `default_callbacks`. Otherwise
  /// it has the callbacks that are named and nothing else.
  bool default_callbacks = true;
  /// How the default callbacks show what happens; `none` does not print metrics either.
  ProgressBarOptions::Mode progress = ProgressBarOptions::Mode::automatic;
  /// Folder of what the program writes.
  std::filesystem::path output_dir = "output";
  /// Checkpoint of the model, the optimizer and the scheduler at the end, below `output_dir`;
  /// "none" writes none.
  std::optional<std::filesystem::path> checkpoint = "checkpoint.pt";
  /// A training state, a folder of them, or "latest": the newest of `states.directory`, or the
  /// beginning if there is none.
  std::optional<std::filesystem::path> resume_from{};
  /// A file of weights that the model starts with: a state dict or a checkpoint (.pt,
  /// .safetensors), Python's too. Under "model_state_dict", "state_dict" or "model" they are found.
  std::optional<std::filesystem::path> init_from{};
  /// Where else in the file the weights are, as keys joined by dots: "checkpoint.net".
  std::string init_key{};
  /// A checkpoint of Trainer: the model and the optimizer go on from it; the learning rate is that
  /// of the configuration.
  std::optional<std::filesystem::path> load_checkpoint{};

  LINKBOY_FIELDS(seed, num_threads, default_callbacks, progress, output_dir, checkpoint,
                 resume_from, init_from, init_key, load_checkpoint);
};

/// What a program of `run` trains and evaluates on. All but the first may be left out.
struct RunData {
  /// Training data.
  Dataset train_dataset{};
  /// Evaluated as TrainOptions says.
  Dataset eval_dataset{};
  /// Further evaluation data, by name.
  std::vector<NamedDataset> more_eval_datasets{};
  /// Evaluated once after training; the program prints its metrics.
  Dataset test_dataset{};
  /// Changes the training batches.
  Transform train_transform{};
  /// Changes the batches of evaluations and of the test.
  Transform eval_transform{};
  /// Makes batches of single samples.
  CollateFn collate_fn{};
};

/// What a program of `run` has done.
struct RunResult {
  /// If `reason` is `nan`, nothing was saved or tested.
  TrainResult training;
  /// Of the test data; empty if there are none or the run was asked to stop.
  Metrics test_metrics{};
};

/// What `run` needs beside the model and the data. Every member has a default.
struct RunProgram {
  /// What the program does, in a sentence or two; `--help` begins with it.
  std::string description = "Trains a model.";
  /// What the configuration starts from.
  RunSettings defaults{};
  /// The loss; may be empty if `make_trainer` makes a Trainer that computes its losses.
  LossFunction loss_function{};
  /// Makes the Trainer; by default a `Trainer`.
  std::function<std::unique_ptr<Trainer>(Model, LossFunction,
                                         std::shared_ptr<torch::optim::Optimizer>, TrainerOptions)>
      make_trainer{};
  /// Adds options and aliases of the program.
  std::function<void(CommandLine&)> add_options{};
  /// Returns callbacks of the program, which has the whole configuration by now.
  std::function<CallbackList(const RunSettings&, const Model&)> make_callbacks{};
  /// Called after training, saving and testing, on each process. What it throws is the program's
  /// error.
  std::function<void(Trainer&, const RunResult&)> after_training{};
};

namespace detail {

struct NoOptions {
  void visit_fields(const auto&) {}
};

template <class R, class... A>
struct Argument {
  using Type = NoOptions;
};
template <class R, class A>
struct Argument<R, A> {
  using Type = std::remove_cvref_t<A>;
};
template <class R, class C, class... A>
Argument<R, A...> argument_of(R (C::*)(A...) const);

/// What a lambda, or a function pointer, of one argument or none takes.
template <class F>
struct ArgumentOf {
  using Type = typename decltype(argument_of(&F::operator()))::Type;
};
template <class R, class... A>
struct ArgumentOf<R (*)(A...)> {
  using Type = typename Argument<R, A...>::Type;
};

template <class F, class Options>
auto call_with(const F& function, const Options& options) {
  if constexpr (std::is_same_v<Options, NoOptions>) {
    return function();
  } else {
    return function(options);
  }
}

/// A program whose model and data options are known.
struct LINKBOY_API RunParts {
  RunProgram program;
  std::function<void(CommandLine&)> add_model_and_data_options;
  std::function<Model()> make_model;
  std::function<RunData()> make_data;
};

LINKBOY_API int run(int argc, const char* const* argv, RunParts parts) noexcept;

}  // namespace detail

/// A whole training program: reads the command line and the config file, trains, tests and saves.
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
/// and then
///
///     ./train --model.width 128 --data.folder /data --train.num_epochs 8 --optimizer sgd:lr=0.1
///     ./train --scheduler cosine --metrics accuracy:num_classes=10 --callbacks
///     time-limit:minutes=5
///     ./train --print-config > run.json; ./train --config run.json --resume_from latest
///
/// The LINKBOY_FIELDS of the arguments of `make_model` and `make_data` are the options of the
/// groups `model` and `data`; both functions may also take nothing. Short names of frequent
/// options: `--epochs`, `--max-updates`, `--batch-size`, `--eval-batch-size`, `--lr`, `--workers`,
/// `--save-every-updates`, `--save-every-epochs`. Of others the end is enough where no other option
/// ends so: `--zero_stage 1`, `--device cpu`.
///
/// A training state carries the configuration as text ("linkboy::cli::RunConfiguration" among its
/// callbacks), and a run that resumes it prints what has changed. A signal stops the run in order:
/// states and checkpoint are saved.
///
/// @return The program's exit status: 0 success, 1 error, 2 wrong usage, 128 + N after signal N.
template <class MakeModel, class MakeData>
int run(int argc, const char* const* argv, MakeModel make_model, MakeData make_data,
        RunProgram program = {}) {
  auto model = std::make_shared<typename detail::ArgumentOf<MakeModel>::Type>();
  auto data = std::make_shared<typename detail::ArgumentOf<MakeData>::Type>();
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
