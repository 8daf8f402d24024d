// The program of `cli::run`: creates callbacks, trackers and Trainer from the configuration, checks
// them before the first update, trains, tests and saves.

#include "linkboy/cli/run.hpp"

#include <fmt/format.h>
#include <torch/utils.h>

#include <algorithm>
#include <csignal>
#include <cstring>
#include <nlohmann/json.hpp>

#include "cli/run_options.hpp"
#include "linkboy/callbacks/callback_factory.hpp"
#include "linkboy/callbacks/default_callbacks.hpp"
#include "linkboy/callbacks/fast_dev_run.hpp"
#include "linkboy/callbacks/log_metrics.hpp"
#include "linkboy/callbacks/metric_callback.hpp"
#include "linkboy/callbacks/print_progress.hpp"
#include "linkboy/callbacks/save_training_state.hpp"
#include "linkboy/callbacks/stop_on_signal.hpp"
#include "linkboy/checkpoint/checkpoint.hpp"
#include "linkboy/checkpoint/tensor_renaming.hpp"
#include "linkboy/error.hpp"
#include "linkboy/metrics/metric_factory.hpp"
#include "linkboy/tracking/track_run.hpp"
#include "linkboy/tracking/tracker_factory.hpp"

namespace linkboy::cli::detail {
namespace {

constexpr const char* kLatest = "latest";

/// Stores the configuration in training states, and prints the settings that a resumed run has
/// changed.
class RunConfiguration final : public Callback {
 public:
  explicit RunConfiguration(std::string config) : config_(std::move(config)) {}

  StateDict state_dict() const override { return {{"config", config_}}; }
  void load_state_dict(const StateDict& state) override { saved_ = state.get_string("config"); }

  void on_training_run_start(Trainer& trainer) override {
    if (!is_resumed()) return;
    const auto before = nlohmann::json::parse(saved_, nullptr, /*allow_exceptions=*/false);
    if (before.is_discarded()) return;
    const auto now = nlohmann::json::parse(config_).flatten();
    const auto flat = before.flatten();
    bool is_ignored = false;
    for (const auto& [path, value] : now.items()) {
      const bool is_place = path == "/resume_from";
      if (is_place || flat.value(path, nlohmann::json()) == value) continue;
      const std::string old = flat.contains(path) ? flat[path].dump() : "not set";
      trainer.print("Configuration changed since the saved state: " + path.substr(1) + " is " +
                    value.dump() + ", was " + old);
      // The state has the values of the optimizer and the schedule.
      is_ignored = is_ignored || path.starts_with("/optimizer/");
    }
    if (is_ignored) trainer.print("The run keeps the saved values of the optimizer");
  }

 protected:
  std::string default_name() const override { return "linkboy::cli::RunConfiguration"; }

 private:
  std::string config_;
  std::string saved_;
};

std::filesystem::path states_directory(const RunSettings& settings) {
  return settings.output_dir / settings.states.directory;
}

bool saves_states(const RunSettings& settings) {
  const SaveTrainingStateOptions& states = settings.states;
  return states.every_n_updates || states.every_n_epochs || states.every_n_minutes ||
         states.save_at_decays || settings.resume_from;
}

std::shared_ptr<Callback> make_named_callback(const NamedSettings& named,
                                              const RunSettings& settings) {
  TextSettings options = named.settings;
  const bool has_directory = std::any_of(options.begin(), options.end(), [](const auto& option) {
    return option.first == "directory";
  });
  // The folder that `--resume_from latest` searches.
  if (named.name == "save-training-state" && !has_directory) {
    options.emplace_back("directory", states_directory(settings).string());
  }
  return make_callback(named.name, options);
}

/// Adds the metrics of the configuration to those of the program.
MetricCollection make_metrics(const RunSettings& settings, MetricCollection metrics) {
  for (const NamedSettings& named : settings.metrics) {
    std::string name = recorded_name(named.name);
    TextSettings options = named.settings;
    std::erase_if(options, [&](const auto& option) {
      if (option.first != kRecordedName) return false;
      name = option.second;
      return true;
    });
    metrics.add(name, make_metric(named.name, options));
  }
  return metrics;
}

/// Makes the callback that records the run; null without trackers.
/// @param config  The configuration as JSON; it is recorded with the run as {"optimizer.lr",
///        "0.1"}.
std::shared_ptr<Callback> make_track_run(const RunSettings& settings, const std::string& config) {
  if (settings.trackers.empty()) return nullptr;
  std::vector<std::shared_ptr<Tracker>> trackers;
  for (const NamedSettings& named : settings.trackers) {
    trackers.push_back(make_tracker(named.name, named.settings));
  }
  TrackRunOptions options = settings.track_run;
  const auto flat = nlohmann::json::parse(config).flatten();
  for (const auto& [path, value] : flat.items()) {
    std::string name = path.substr(1);
    std::replace(name.begin(), name.end(), '/', '.');  // "optimizer" may be the name of a file
    options.config.emplace_back(std::move(name),
                                value.is_string() ? value.get<std::string>() : value.dump());
  }
  return std::make_shared<TrackRun>(std::move(trackers), std::move(options));
}

template <class C>
bool is_a(const std::shared_ptr<Callback>& callback) {
  return dynamic_cast<C*>(callback.get()) != nullptr;
}

void set_progress(CallbackList& callbacks, ProgressBarOptions::Mode mode) {
  if (mode == ProgressBarOptions::Mode::none) {
    std::erase_if(callbacks, [](const auto& callback) {
      return is_a<PrintProgress>(callback) || is_a<ProgressBar>(callback) ||
             is_a<LogMetrics>(callback);
    });
  }
  std::replace_if(callbacks.begin(), callbacks.end(), is_a<ProgressBar>,
                  make<ProgressBar>({.mode = mode}));
}

/// Saves a training state if a stop request ends a run that saves no other states.
class SaveWhenStopped final : public Callback {
 public:
  explicit SaveWhenStopped(SaveTrainingStateOptions options) : options_(std::move(options)) {
    options_.initial_checkpoint = {};  // a saver would load it over the trained weights
  }

  /// So that the Trainer can still save the state in an evaluation at the end of an epoch.
  bool saves_training_states() const override { return true; }
  bool is_saved() const { return is_saved_; }
  void on_train_update_end(Trainer& trainer) override {
    if (trainer.requested_stop() == StopReason::stop_request) save(trainer);
  }
  void on_stop_training_error(Trainer& trainer, const StopTraining& stop) override {
    if (stop.reason() == StopReason::stop_request && trainer.can_save_training_state()) {
      save(trainer);
    }
  }

 protected:
  Phase default_phase() const override { return Phase::save; }

 private:
  /// Only now, so that other runs of the program may use the same folder until then.
  void save(Trainer& trainer) {
    if (std::exchange(has_tried_, true)) return;
    try {
      SaveTrainingState saver(options_);
      saver.on_training_run_claim(trainer);
      saver.on_training_run_start(trainer);
      saver.on_stop_training_error(trainer, StopTraining(""));
      saver.on_training_run_end(trainer);
      is_saved_ = saver.is_saved();
      if (is_saved_) trainer.print("Saved a training state; continue with --resume_from latest");
    } catch (const Error& error) {
      trainer.log(LogLevel::error, c10::str("the training state was not saved: ", error.what()));
    }
  }

  SaveTrainingStateOptions options_;
  bool has_tried_ = false;
  bool is_saved_ = false;
};

/// Makes the parts of the Trainer that the configuration determines. A named callback replaces the
/// default one of the same name.
TrainerOptions make_trainer_options(const RunSettings& settings, const std::string& config,
                                    const RunProgram& program) {
  TrainerOptions parts;
  for (const NamedSettings& each : settings.callbacks) {
    parts.callbacks.push_back(
        as_usage("callbacks", [&] { return make_named_callback(each, settings); }));
  }
  parts.metrics = as_usage("metrics", [&] { return make_metrics(settings, program.metrics); });
  if (auto tracking = as_usage("trackers", [&] { return make_track_run(settings, config); })) {
    parts.callbacks.push_back(std::move(tracking));
  }
  parts.callbacks.push_back(std::make_shared<RunConfiguration>(config));
  if (!settings.default_callbacks) parts.default_callbacks = low_overhead_callbacks();
  set_progress(parts.default_callbacks, settings.progress);
  parts.default_callbacks.push_back(std::make_shared<StopOnSignal>());
  SaveTrainingStateOptions states = settings.states;
  states.directory = states_directory(settings);
  if (saves_states(settings)) {
    parts.default_callbacks.push_back(std::make_shared<SaveTrainingState>(states));
  } else if (std::ranges::none_of(parts.callbacks, is_a<SaveTrainingState>)) {
    parts.default_callbacks.push_back(std::make_shared<SaveWhenStopped>(states));
  }
  as_usage("callbacks", [&] { return CallbackHandler(parts.callbacks); });
  return parts;
}

TrainOptions make_train_options(const RunSettings& settings, const RunData& data) {
  TrainOptions options = settings.train;
  options.train_dataset = data.train_dataset;
  options.eval_dataset = data.eval_dataset;
  options.more_eval_datasets = data.more_eval_datasets;
  options.collate_fn = data.collate_fn;
  options.train_dataloader_options = settings.train_dataloader;
  options.train_dataloader_options.transform = data.train_transform;
  options.eval_dataloader_options = settings.eval_dataloader;
  options.eval_dataloader_options.transform = data.eval_transform;
  if (settings.resume_from) {
    options.resume_from = *settings.resume_from == kLatest ? states_directory(settings) / kLatest
                                                           : *settings.resume_from;
  }
  options.create_scheduler_fn = scheduler_fn(settings.scheduler);
  options.create_step_executor_fn = compiled_steps(settings.compile);
  return options;
}

std::optional<std::filesystem::path> checkpoint_of(const RunSettings& settings) {
  if (!settings.checkpoint) return std::nullopt;
  return settings.output_dir / *settings.checkpoint;
}

void load_weights(Model& model, const std::filesystem::path& path, const std::string& key) {
  StateDict state = get_nested(read_checkpoint(path), key);
  for (const char* usual : {"model_state_dict", "state_dict", "model"}) {
    if (key.empty() && state.contains(usual) && state.at(usual).isGenericDict()) {
      state = state.get_dict(usual);
    }
  }
  try {
    model.load_state_dict(state);
  } catch (const Error& error) {
    throw Error(c10::str("the weights in ", path, " do not fit: ", error.what()));
  }
}

/// Loads everything except the learning rates, which keep their values.
void load_checkpoint(Trainer& trainer, const std::filesystem::path& path) {
  const auto lr = get_param_group_field(*trainer.optimizer(), ParamGroupField::lr);
  trainer.load_checkpoint(path, {.scheduler = false});
  set_param_group_field(*trainer.optimizer(), ParamGroupField::lr, lr);
}

/// "eval_accuracy" is printed as "accuracy", and "evaluation_loss" as "loss".
std::string short_name(const std::string& name) {
  for (const std::string_view prefix : {"eval_", "evaluation_"}) {
    if (name.starts_with(prefix)) return name.substr(prefix.size());
  }
  return name;
}

Metrics test(Trainer& trainer, const RunSettings& settings, const RunData& data) {
  DataLoaderOptions loader = settings.eval_dataloader;
  loader.transform = data.eval_transform;
  Metrics metrics = trainer.evaluate(
      {.dataset = data.test_dataset,
       .per_device_batch_size = loader.batch_size.value_or(settings.train.per_device_batch_size),
       .dataloader_options = loader,
       .collate_fn = data.collate_fn});
  for (const bool is_loss : {true, false}) {  // the loss comes first
    for (const auto& [name, value] : metrics) {
      if ((name == "evaluation_loss") != is_loss) continue;
      trainer.print(fmt::format("test {}: {:.4f}", short_name(name), value));
    }
  }
  return metrics;
}

/// Returns null if the default output is sufficient.
std::shared_ptr<Logger> make_logger_of(const RunSettings& settings) {
  LoggerOptions options = settings.log;
  if (!options.file && options.print && options.level == LogLevel::info) return nullptr;
  if (options.file) options.file = settings.output_dir / *options.file;
  return make_logger(options);
}

void check_outputs_differ(const RunSettings& settings) {
  std::vector<std::filesystem::path> outputs;
  if (const auto path = checkpoint_of(settings)) outputs.push_back(*path);
  if (settings.log.file) outputs.push_back(settings.output_dir / *settings.log.file);
  for (const auto* objects : {&settings.callbacks, &settings.trackers}) {
    for (const NamedSettings& each : *objects) {
      for (const auto& [key, value] : each.settings) {
        if (key == "path") outputs.emplace_back(value);
      }
    }
  }
  std::erase(outputs, "/dev/null");
  for (auto& path : outputs) path = std::filesystem::absolute(path).lexically_normal();
  std::sort(outputs.begin(), outputs.end());
  const auto twin = std::adjacent_find(outputs.begin(), outputs.end());
  if (twin == outputs.end()) return;
  throw UsageError(
      c10::str(*twin,
               " is the path of two outputs; --checkpoint, --log.file, the callbacks and "
               "the trackers must use different files."));
}

/// Checks for options without an effect and for contradictions between options.
/// @param defaults  The defaults of the program.
void check_together(const RunSettings& settings, const RunSettings& defaults) {
  const auto refuse = [](const char* what) { throw UsageError(what); };
  const TrainOptions& train = settings.train;
  LINKBOY_CHECK_OPTION(!train.create_scheduler_fn && !train.train_dataset && !train.eval_dataset,
                       "defaults.train of the program has data or a schedule, which the run would "
                       "not use. Set defaults.scheduler, and return the data as RunData.");
  LINKBOY_CHECK_AS(UsageError, settings.num_threads >= 0, "--num_threads is ", settings.num_threads,
                   "; it must be at least 0. 0 uses LibTorch's default.");
  if (settings.init_from && settings.load_checkpoint) {
    refuse("--init_from and --load_checkpoint are both given; use only one of them.");
  }
  if (settings.load_checkpoint && settings.resume_from) {
    refuse("--load_checkpoint and --resume_from are both given; use only one of them.");
  }
  if (!settings.init_key.empty() && !settings.init_from) {
    refuse("--init_key needs a file; set it with --init_from FILE.");
  }
  const auto differ = [](const auto& options, const auto& others) {
    return options_to_text(options) != options_to_text(others);
  };
  SaveTrainingStateOptions states = settings.states;
  states.directory = defaults.states.directory;  // also used by --callbacks save-training-state
  if (!saves_states(settings) && differ(states, defaults.states)) {
    refuse(
        "--states options are given, but no training states are saved; set "
        "--states.every_n_updates N or --states.every_n_epochs N.");
  }
  if (settings.trackers.empty() && differ(settings.track_run, defaults.track_run)) {
    refuse("--track_run options are given, but there is no tracker; add --trackers NAME.");
  }
  if (train.execution_mode != ExecutionMode::compiled &&
      differ(settings.compile, defaults.compile)) {
    refuse("--compile options are given, but steps are not compiled; set --execution compiled.");
  }
  check_outputs_differ(settings);
}

/// Returns the signal that stopped the run, if a process received one.
std::optional<int> signal_of(Trainer& trainer) {
  const auto callback = trainer.callback_handler().find<StopOnSignal>();
  return callback ? callback->signal() : std::nullopt;
}

/// Whether a callback that saves the end of a run has not saved it.
bool has_unsaved_end(Trainer& trainer) {
  return std::ranges::any_of(trainer.callback_handler().callbacks(), [](const auto& callback) {
    const auto* const own = dynamic_cast<const SaveTrainingState*>(callback.get());
    const auto* const when_stopped = dynamic_cast<const SaveWhenStopped*>(callback.get());
    return (own && own->saves_at_end() && !own->is_saved()) ||
           (when_stopped && !when_stopped->is_saved());
  });
}

void train(const RunParts& parts, const RunSettings& settings, const std::string& config) {
  TrainerOptions trainer_options = make_trainer_options(settings, config, parts.program);
  const auto create_optimizer = optimizer_fn(settings.optimizer);
  if (settings.num_threads > 0) torch::set_num_threads(static_cast<int>(settings.num_threads));
  const auto accelerator = std::make_shared<Accelerator>([&] {
    AcceleratorOptions options = settings.accelerator;
    auto& as_view = options.distributed.gradient_as_bucket_view;
    as_view = as_view.value_or(true);
    if (!options.logger) options.logger = make_logger_of(settings);
    return options;
  }());
  run_on_main_process(*accelerator, [&] {  // before the first update
    if (const auto path = checkpoint_of(settings)) check_writable(*path);
    if (saves_states(settings)) check_writable(states_directory(settings) / "writable");
  });
  accelerator->set_seed_per_process(settings.seed);
  const RunData data = parts.make_data();
  Model model = parts.make_model();
  if (settings.init_from) {  // the other processes get the weights later
    run_on_main_process(*accelerator,
                        [&] { load_weights(model, *settings.init_from, settings.init_key); });
  }
  if (parts.program.make_callbacks) {
    const CallbackList own = parts.program.make_callbacks(settings, model);
    trainer_options.callbacks.insert(trainer_options.callbacks.end(), own.begin(), own.end());
  }
  trainer_options.shared_accelerator = accelerator;
  const TrainOptions options = make_train_options(settings, data);
  LINKBOY_CHECK(parts.program.make_trainer,
                "make_trainer of the program is empty; leave out the member to get a Trainer.");
  const auto trainer =
      parts.program.make_trainer(model, parts.program.loss_function,
                                 create_optimizer(model.parameters()), std::move(trainer_options));

  if (settings.load_checkpoint) load_checkpoint(*trainer, *settings.load_checkpoint);

  RunResult result{.training = trainer->train(options)};
  const auto [reason, num_updates] = std::pair(result.training.reason, result.training.num_updates);
  const bool has_failed = reason == StopReason::nan;
  const bool is_rehearsal = trainer->callback_handler().find<FastDevRun>() != nullptr;
  const auto signal = signal_of(*trainer);  // before an evaluation begins to wait for another one
  if (const auto path = checkpoint_of(settings); path && !is_rehearsal && !has_failed) {
    trainer->save_checkpoint(*path);
    trainer->print("checkpoint: " + path->string());
  }
  if (reason == StopReason::stop_request) {
    // After a stop request, skip the final test.
    const std::string cause =
        signal ? fmt::format("by signal {} ({})", *signal, strsignal(*signal)) : "on request";
    trainer->print(fmt::format("stopped {} after update {}", cause, num_updates));
  } else if (data.test_dataset && !has_failed) {
    result.test_metrics = test(*trainer, settings, data);
  }
  if (parts.program.after_training) parts.program.after_training(*trainer, result);
  LINKBOY_CHECK(!has_failed, "the loss became NaN or infinite after ", num_updates,
                " updates; no checkpoint was saved. Lower --optimizer.lr, or limit the gradients "
                "with --train.gradient_clip_norm.");
  // All processes end with the same status, and only when none of them is writing: if one fails,
  // launchers kill the others.
  const auto own_signal = torch::tensor(signal.value_or(signal_of(*trainer).value_or(0)));
  const int signal_of_any = accelerator->reduce(own_signal, ReduceOp::max).item<int>();
  LINKBOY_CHECK(reason != StopReason::stop_request || is_rehearsal || !has_unsaved_end(*trainer),
                "the run was stopped after update ", num_updates,
                ", but its training state was not saved. See the error above; --resume-from latest "
                "continues from an earlier state, if there is one.");
  // A shell or a job scheduler sees the reason in the exit status.
  constexpr int kKilledBySignal = 128;
  if (signal_of_any != 0) throw ExitStatus{kKilledBySignal + signal_of_any};
}

}  // namespace

int run(int argc, const char* const* argv, RunParts parts) noexcept {
  // A closed output or a file at its size limit then causes a write error instead of killing the
  // program before it saves its state.
  const auto before_pipe = std::signal(SIGPIPE, SIG_IGN);
  const auto before_size = std::signal(SIGXFSZ, SIG_IGN);
  // run_main catches the exceptions of its body.
  // cppcheck-suppress throwInNoexceptFunction
  const int status = run_main(argc, argv, [&](const Arguments& arguments) {
    const std::filesystem::path path = argc > 0 ? argv[0] : "program";
    RunSettings settings = parts.program.defaults;
    CommandLine command_line(path.filename().string(), parts.program.description + kSeeOptions);
    add_options(command_line, settings);
    parts.add_model_and_data_options(command_line);
    if (parts.program.add_options) parts.program.add_options(command_line);
    if (!command_line.parse(arguments)) return;
    check_together(settings, parts.program.defaults);
    train(parts, settings, command_line.config());
  });
  std::signal(SIGPIPE, before_pipe);
  std::signal(SIGXFSZ, before_size);
  return status;
}

}  // namespace linkboy::cli::detail
