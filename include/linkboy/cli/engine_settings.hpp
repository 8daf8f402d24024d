#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "linkboy/cli/command_line.hpp"
#include "linkboy/engine.hpp"
#include "linkboy/export.hpp"
#include "linkboy/run/optimizers.hpp"

namespace linkboy::cli {

/// Configuration of a program with a hand-written loop. The options have the same names as those of
/// `run`.
struct LINKBOY_API EngineSettings {
  /// Options for `initialize`: `--train.num_epochs`, `--accelerator.device`.
  EngineOptions train{};
  /// Options of the training loader: `--train_dataloader.batch_size`, or `--batch-size`.
  DataLoaderOptions train_dataloader{};
  /// Options of the evaluation loader.
  DataLoaderOptions eval_dataloader{};
  /// The optimizer, such as `adamw({.lr = 0.01})`: `--optimizer sgd:lr=0.1`.
  NamedSettings optimizer{"adamw", {}};
  /// The schedule, such as `cosine()`.
  std::optional<NamedSettings> scheduler{};
  /// Seed for `Accelerator::set_seed`.
  uint64_t seed = 0;

  /// Creates the optimizer.
  /// @throws UsageError if an option is out of range.
  std::shared_ptr<torch::optim::Optimizer> make_optimizer(std::vector<at::Tensor> parameters) const;
  /// Returns a function for `initialize`; empty without a schedule.
  /// @throws UsageError if an option is invalid. The function throws it if an option is out of
  ///         range.
  CreateSchedulerFn make_scheduler_fn() const;

  LINKBOY_FIELDS(seed);
};

/// Settings of `engine_settings`. Every member has a default.
struct EngineProgram {
  /// Description of the program in one or two sentences; `--help` begins with it.
  std::string description = "Trains a model.";
  /// Defaults of the configuration.
  EngineSettings defaults{};
  /// Adds the program's own options and aliases.
  std::function<void(CommandLine&)> add_options{};
};

/// Reads the configuration of a hand-written loop from the command line and the `--config` file:
///
///     return linkboy::cli::run_main(argc, argv, [](const linkboy::cli::Arguments& arguments) {
///       const auto settings = linkboy::cli::engine_settings("train", arguments);
///       auto [engine, train_dataloader, eval_dataloader, scheduler] = linkboy::initialize(
///           net, settings.make_optimizer(net->parameters()), torch::nn::CrossEntropyLoss(),
///           linkboy::make_data_loader(data, settings.train_dataloader), nullptr,
///           settings.make_scheduler_fn(), settings.train);
///       ...
///     });
///
/// @throws ExitStatus with status 0 after `--help`, `--list` or `--print-config`; UsageError in the
///         cases of `CommandLine::parse`.
LINKBOY_API EngineSettings engine_settings(const std::string& program, const Arguments& arguments,
                                           const EngineProgram& options = {});

}  // namespace linkboy::cli
