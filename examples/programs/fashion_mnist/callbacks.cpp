#include "callbacks.hpp"

#include <torch/nn/modules/linear.h>
#include <algorithm>
#include <linkboy/callbacks/callback_factory.hpp>
#include <linkboy/callbacks/default_callbacks.hpp>
#include <linkboy/callbacks/freeze_layers.hpp>
#include <linkboy/callbacks/log_metrics.hpp>
#include <linkboy/callbacks/metric_callback.hpp>
#include <linkboy/callbacks/move_modules_to_device.hpp>
#include <linkboy/callbacks/print_progress.hpp>
#include <linkboy/callbacks/progress_bar.hpp>
#include <linkboy/callbacks/save_training_state.hpp>
#include <linkboy/callbacks/terminate_on_nan.hpp>
#include <linkboy/callbacks/track_run.hpp>
#include <linkboy/error.hpp>
#include <linkboy/metrics/accuracy.hpp>
#include <linkboy/metrics/cohen_kappa.hpp>
#include <linkboy/metrics/f_beta.hpp>
#include <linkboy/metrics/precision_score.hpp>
#include <linkboy/metrics/recall_score.hpp>
#include <linkboy/tracking/csv_tracker.hpp>
#include <linkboy/tracking/html_report.hpp>
#include <linkboy/tracking/json_lines_tracker.hpp>
#include <linkboy/tracking/mlflow_tracker.hpp>
#include <linkboy/tracking/tensorboard_tracker.hpp>
#include <utility>

#include "idx.hpp"

namespace fashion_mnist {
namespace {

using linkboy::CallbackList;

/// A callback by its name, and its options.
struct Named {
  std::string name;
  linkboy::TextSettings settings;
};

/// From "model-ema:decay=0.99,warmup=false".
Named parse(const std::string& text) {
  const std::size_t colon = text.find(':');
  Named named{text.substr(0, colon), {}};
  if (colon != std::string::npos) {
    named.settings =
        linkboy::cli::split_settings("callbacks", linkboy::split_at(',', text.substr(colon + 1)));
  }
  return named;
}

/// Freezes the first layers of the network: `freeze:to_index=1`.
linkboy::FreezeOptions read_freeze(const linkboy::TextSettings& settings) {
  return linkboy::options_from_text<linkboy::FreezeOptions>("callback freeze", settings);
}

std::shared_ptr<linkboy::Callback> make_freeze(const linkboy::TextSettings& settings,
                                               const linkboy::Model& model) {
  auto freezer = std::make_shared<linkboy::ModelFreezer>(model);
  freezer->freeze(read_freeze(settings));
  return std::make_shared<linkboy::FreezeLayers>(std::move(freezer));
}

/// Which options of the program set up a callback that it has by itself.
std::string options_of(const std::string& name) {
  if (name == "save-training-state") {
    return "It is set up by --save-every-updates, --save-every-epochs, --keep and --async-save.";
  }
  if (name == "progress-bar" || name == "print-progress" || name == "log-metrics") {
    return "It is set up by --progress.";
  }
  return "Leave it out; if you gave it twice, give all of its options at once.";
}

std::shared_ptr<linkboy::Callback> make_named(Named named, const Options& options,
                                              const linkboy::Model& model) {
  if (named.name == "freeze") return make_freeze(named.settings, model);
  if (named.name == "save-training-state") {
    const bool has_directory =
        std::any_of(named.settings.begin(), named.settings.end(),
                    [](const auto& setting) { return setting.first == "directory"; });
    // Where --resume latest looks.
    if (!has_directory) named.settings.emplace_back("directory", options.states().string());
  }
  return linkboy::make_callback(named.name, named.settings);
}

/// The accuracy, and with `--metrics` what else there is to say about ten classes.
std::shared_ptr<linkboy::Callback> make_metrics(const Options& options) {
  linkboy::MetricCollection metrics{
      {"accuracy", linkboy::make<linkboy::Accuracy>({.num_classes = kNumClasses})}};
  if (options.metrics) {
    const linkboy::ClassificationOptions macro{.num_classes = kNumClasses};
    metrics.add("precision", std::make_shared<linkboy::PrecisionScore>(macro));
    metrics.add("recall", std::make_shared<linkboy::RecallScore>(macro));
    metrics.add("f1", linkboy::make<linkboy::FBeta>({.num_classes = kNumClasses}));
    metrics.add("kappa", linkboy::make<linkboy::CohenKappa>({.num_classes = kNumClasses}));
  }
  return std::make_shared<linkboy::MetricCallback>(std::move(metrics));
}

/// Null if nothing is to be tracked.
std::shared_ptr<linkboy::Callback> make_track_run(const Options& options) {
  std::vector<std::shared_ptr<linkboy::Tracker>> trackers;
  if (options.tensorboard) {
    trackers.push_back(
        linkboy::make<linkboy::TensorBoardTracker>({.directory = *options.tensorboard}));
  }
  if (options.mlflow) {
    trackers.push_back(linkboy::make<linkboy::MlflowTracker>({.directory = *options.mlflow}));
  }
  if (options.csv) trackers.push_back(std::make_shared<linkboy::CsvTracker>(*options.csv));
  if (options.json_lines) {
    trackers.push_back(std::make_shared<linkboy::JsonLinesTracker>(*options.json_lines));
  }
  if (options.html_report) {
    trackers.push_back(std::make_shared<linkboy::HtmlReport>(*options.html_report));
  }
  if (trackers.empty()) return nullptr;
  return linkboy::make<linkboy::TrackRun>(
      std::move(trackers), {.name = "fashion_mnist",
                            .config = {{"model", options.model},
                                       {"scheduler", options.scheduler},
                                       {"augment", options.augment ? "true" : "false"},
                                       {"seed", std::to_string(options.seed)}},
                            .every_n_updates = options.track_every_updates.value_or(50),
                            .histograms_every_n_epochs = options.track_histograms});
}

std::vector<std::shared_ptr<linkboy::Callback>> make_progress(const Options& options) {
  using Mode = linkboy::ProgressBarOptions::Mode;
  if (options.progress == "none") return {};
  const Mode mode = options.progress == "bar"     ? Mode::bar
                    : options.progress == "plain" ? Mode::plain
                                                  : Mode::automatic;
  return {std::make_shared<linkboy::PrintProgress>(),
          linkboy::make<linkboy::ProgressBar>({.mode = mode}),
          std::make_shared<linkboy::LogMetrics>()};
}

}  // namespace

CallbackList make_callbacks(const Options& options, const linkboy::Model& model,
                            std::shared_ptr<Report> report,
                            std::shared_ptr<linkboy::StopOnSignal> stop_on_signal) {
  CallbackList callbacks = linkboy::low_overhead_callbacks({std::move(stop_on_signal)});
  const auto add = [&](std::shared_ptr<linkboy::Callback> callback) {
    if (callback) callbacks.push_back(std::move(callback));
  };
  add(make_metrics(options));
  if (!options.low_overhead) {
    add(std::make_shared<linkboy::TerminateOnNaN>());
    for (auto& callback : make_progress(options)) add(std::move(callback));
  }
  add(std::move(report));
  for (const std::string& text : options.callbacks) add(make_named(parse(text), options, model));
  add(make_track_run(options));
  if (options.saves_states()) {
    add(linkboy::make<linkboy::SaveTrainingState>({.directory = options.states(),
                                                   .every_n_updates = options.save_every_updates,
                                                   .every_n_epochs = options.save_every_epochs,
                                                   .keep_last = options.keep.value_or(2),
                                                   .asynchronous = options.async_save}));
  }
  return callbacks;
}

std::string list_callbacks() {
  std::string text;
  for (const std::string& name : linkboy::callback_names()) {
    text += linkboy::list_fields(name, linkboy::callback_options(name));
  }
  return text + linkboy::list_fields("freeze", linkboy::options_to_text(linkboy::FreezeOptions()));
}

void check_callbacks(const Options& options) {
  Options own = options;
  own.callbacks.clear();
  if (!options.saves_states()) own.resume.reset();
  const linkboy::Model no_model{torch::nn::Identity()};  // it takes none to make the others
  const linkboy::CallbackHandler present(
      make_callbacks(own, no_model, nullptr, std::make_shared<linkboy::StopOnSignal>()));
  std::vector<std::string> names = present.names();
  for (const std::string& text : options.callbacks) {
    const Named named = parse(text);
    try {
      std::string name = "freeze";
      if (named.name == name) {
        read_freeze(named.settings);  // it takes the network to make it
      } else {
        name = linkboy::make_callback(named.name, named.settings)->name();
      }
      LINKBOY_CHECK(std::find(names.begin(), names.end(), name) == names.end(),
                    "the run has this callback already. ", options_of(named.name));
      names.push_back(std::move(name));
    } catch (const linkboy::Error& error) {
      throw linkboy::cli::UsageError(c10::str("--callbacks ", text, ": ", error.what()));
    }
  }
}

}  // namespace fashion_mnist
