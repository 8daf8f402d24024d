// The options of `cli::run` and of `cli::engine_settings`, and the objects that they name.

#include "cli/run_options.hpp"

#include <algorithm>
#include <initializer_list>
#include <utility>

#include "linkboy/callbacks/callback_factory.hpp"
#include "linkboy/cli/engine_settings.hpp"
#include "linkboy/metrics/metric_factory.hpp"
#include "linkboy/run/optimizers.hpp"
#include "linkboy/schedulers/scheduler_factory.hpp"
#include "linkboy/tracking/tracker_factory.hpp"

namespace linkboy::cli {
namespace {

TextSettings options_of_metric(const std::string& name) {
  TextSettings options = metric_options(name);
  options.emplace_back(detail::kRecordedName, detail::recorded_name(name));
  return options;
}

/// Adds the options that RunSettings and EngineSettings share.
OptionGroup& add_common_options(CommandLine& command_line, auto& settings,
                                AcceleratorOptions& accelerator) {
  command_line.add_group("Training").add_fields("train", &settings.train);
  command_line.add_group("Loaders")
      .add_fields("train_dataloader", &settings.train_dataloader)
      .add_fields("eval_dataloader", &settings.eval_dataloader);
  command_line.add_group("Device, precision and processes")
      .add_fields("accelerator", &accelerator)
      .add_fields("accelerator.grad_scaler", &accelerator.grad_scaler)
      .add_fields("accelerator.distributed", &accelerator.distributed);
  return command_line.add_group("Parts by name")
      .add_named("optimizer", &settings.optimizer, {optimizer_names(), optimizer_options},
                 "Optimizer.")
      .add_named("scheduler", &settings.scheduler, {scheduler_names(), scheduler_options},
                 "Learning-rate schedule; none keeps the rate constant.");
}

void add_aliases(CommandLine& command_line, const TextSettings& aliases) {
  for (const auto& [alias, name] : aliases) command_line.add_alias(alias, name);
  for (const auto& [alias, name] :
       {std::pair{"epochs", "train.num_epochs"}, std::pair{"max-updates", "train.max_num_updates"},
        std::pair{"eval-batch-size", "eval_dataloader.batch_size"},
        std::pair{"workers", "train_dataloader.num_workers"}, std::pair{"lr", "optimizer.lr"}}) {
    command_line.add_alias(alias, name);
  }
}

}  // namespace

NamedSettings::NamedSettings(const Recipe& recipe) {
  const auto find_in = [&](const auto& factory) {
    for (const auto& entry : factory.entries()) {
      if (entry.type != recipe.type) continue;
      name = entry.name;
      for (const auto& option : recipe.options) {
        const auto& defaults = entry.options;
        if (std::find(defaults.begin(), defaults.end(), option) == defaults.end()) {
          settings.push_back(option);
        }
      }
    }
  };
  find_in(optimizer_factory());
  find_in(scheduler_factory());
  find_in(callback_factory());
  find_in(metric_factory());
  find_in(tracker_factory());
  LINKBOY_CHECK_OPTION(
      !name.empty() && !recipe.has_functions, "an object in the defaults of a program",
      recipe.type == typeid(void) ? "" : c10::str(" (", c10::demangle(recipe.type.name()), ")"),
      name.empty() ? " does not have a name in text"
                   : " has an option that is a function, which text cannot express",
      ". Add it in the program, for example in make_callbacks.");
}

std::shared_ptr<torch::optim::Optimizer> EngineSettings::make_optimizer(
    std::vector<at::Tensor> parameters) const {
  return detail::optimizer_fn(optimizer)(std::move(parameters));
}

CreateSchedulerFn EngineSettings::make_scheduler_fn() const {
  return detail::scheduler_fn(scheduler);
}

EngineSettings engine_settings(const std::string& program, const Arguments& arguments,
                               const EngineProgram& options) {
  EngineSettings settings = options.defaults;
  CommandLine command_line(program, options.description + detail::kSeeOptions);
  add_common_options(command_line, settings, settings.train.accelerator);
  command_line.add_group("Program").add_fields("", &settings);
  add_aliases(command_line, {{"batch-size", "train_dataloader.batch_size"}});
  if (options.add_options) options.add_options(command_line);
  if (!command_line.parse(arguments)) throw ExitStatus{0};
  return settings;
}

namespace detail {

std::string recorded_name(std::string metric) {
  std::replace(metric.begin(), metric.end(), '-', '_');
  return metric;
}

CreateOptimizerFn optimizer_fn(const NamedSettings& optimizer) {
  const auto create =
      as_usage("optimizer", [&] { return make_optimizer_fn(optimizer.name, optimizer.settings); });
  return [create](std::vector<at::Tensor> parameters) {
    return as_usage("optimizer", [&] { return create(std::move(parameters)); });
  };
}

CreateSchedulerFn scheduler_fn(const std::optional<NamedSettings>& scheduler) {
  if (!scheduler) return {};
  const auto create = as_usage(
      "scheduler", [&] { return make_scheduler_fn(scheduler->name, scheduler->settings); });
  return [create](torch::optim::Optimizer& optimizer, const RunConfig& config) {
    return as_usage("scheduler", [&] { return create(optimizer, config); });
  };
}

void add_options(CommandLine& command_line, RunSettings& settings) {
  add_common_options(command_line, settings, settings.accelerator)
      .add_named("callbacks", &settings.callbacks, {callback_names(), callback_options},
                 "Callback to add; it replaces a default callback of the same name.")
      .add_named("metrics", &settings.metrics, {metric_names(), options_of_metric},
                 "Metric to compute in every evaluation.")
      .add_named("trackers", &settings.trackers, {tracker_names(), tracker_options},
                 "Tracker that records the run.")
      .add_fields("track_run", &settings.track_run);
  command_line.add_group("Compiled steps").add_fields("compile", &settings.compile);
  command_line.add_group("Program")
      .add_fields("states", &settings.states)
      .add_fields("log", &settings.log)
      .add_fields("", &settings);
  add_aliases(command_line, {{"batch-size", "train.per_device_batch_size"},
                             {"compile-in-background", "compile.in_background"},
                             {"execution", "train.execution_mode"},
                             {"save-every-updates", "states.every_n_updates"},
                             {"save-every-epochs", "states.every_n_epochs"}});
}

}  // namespace detail
}  // namespace linkboy::cli
