#include "options.hpp"

#include <c10/core/Device.h>

#include <algorithm>
#include <iostream>
#include <linkboy/callbacks/callback_factory.hpp>
#include <linkboy/checkpoint/checkpoint.hpp>
#include <linkboy/error.hpp>
#include <linkboy/schedulers/scheduler_factory.hpp>
#include <linkboy/schedulers/warmup_scheduler.hpp>
#include <utility>
#include <vector>

#include "callbacks.hpp"

namespace fashion_mnist {
namespace {

namespace cli = linkboy::cli;

constexpr int64_t kMaxThreads = 1024;
constexpr int64_t kMaxTimeout = 1'000'000;

/// Calls `make`; what it finds wrong is wrong on the command line.
template <class Make>
auto as_usage(Make make) {
  try {
    return make();
  } catch (const linkboy::Error& error) {
    throw cli::UsageError(error.what());
  }
}

void add_data_options(cli::CommandLine& command_line, Options& options) {
  command_line.add_group("Data")
      .add("data", "DIR", &options.data,
           "Folder of the four idx files, gzipped or not: train-images-idx3-ubyte, "
           "train-labels-idx1-ubyte, t10k-images-idx3-ubyte, t10k-labels-idx1-ubyte.")
      .add("limit-train", "N", &options.limit_train, "Trains on the first N samples only.",
           cli::at_least(1))
      .add("limit-eval", "N", &options.limit_eval, "Evaluates on the first N samples only.",
           cli::at_least(1));
}

void add_model_options(cli::CommandLine& command_line, Options& options) {
  command_line.add_group("Model")
      .add_choice("model", &options.model, {"mlp", "cnn", "resnet18"}, "The network.")
      .add("init", "FILE", &options.init,
           "Starts from these weights: a state dict that Python or linkboy wrote, or a checkpoint "
           "with a model_state_dict; .pt or .safetensors.")
      .add("init-key", "PATH", &options.init_key,
           "The part of --init's file that is the state dict, as keys joined by dots: "
           "checkpoint.model.")
      .add("checkpoint", "FILE", &options.checkpoint_to_load,
           "Starts from the model and the optimizer of a checkpoint; the learning rate is --lr.");
}

void add_training_options(cli::CommandLine& command_line, Options& options) {
  command_line.add_group("Training")
      .add("epochs", "N", &options.epochs, "Passes over the training data.", cli::at_least(1))
      .add("max-steps", "N", &options.max_steps,
           "Updates in the whole run; replaces the number of epochs.", cli::at_least(1))
      .add("batch-size", "N", &options.batch_size,
           "Samples per batch of each process: with 4 of them an update sees 4 times as many.",
           cli::at_least(1))
      .add("eval-batch-size", "N", &options.eval_batch_size, "Samples per batch in evaluation.",
           cli::at_least(1))
      .add("gradient-accumulation-steps", "N", &options.gradient_accumulation_steps,
           "Batches whose gradients make one update.", cli::at_least(1))
      .add("clip-value", "X", &options.clip_value, "Limits each gradient element to [-X, X].",
           cli::positive())
      .add("clip-norm", "X", &options.clip_norm,
           "Scales all gradients together to a 2-norm of at most X.", cli::positive())
      .add_switch("no-shuffle", &options.no_shuffle, "Keeps the order of the files.")
      .add_switch("augment", &options.augment,
                  "Shifts the training images by up to 2 pixels and mirrors half of them.");
}

std::vector<std::string> scheduler_choices() {
  std::vector<std::string> choices = linkboy::scheduler_names();
  choices.insert(choices.begin(), "none");
  return choices;
}

void add_optimizer_options(cli::CommandLine& command_line, Options& options) {
  command_line.add_group("Optimizer and scheduler")
      .add_choice("optimizer", &options.optimizer, {"sgd", "adam", "adamw"}, "The optimizer.")
      .add("lr", "X", &options.lr, "Learning rate.", cli::not_negative())
      .add("momentum", "X", &options.momentum, "Momentum of sgd, below 1.", cli::not_negative())
      .add("weight-decay", "X", &options.weight_decay,
           "Weight decay; PyTorch's default if not given: 0.01 for adamw, else 0.",
           cli::not_negative())
      .add_choice("scheduler", &options.scheduler, scheduler_choices(),
                  "How the learning rate changes, update by update.")
      .add_list("scheduler-option", "KEY=VALUE", &options.scheduler_options,
                "An option of the scheduler (--list-schedulers tells them); may be given several "
                "times. Lists are separated by commas: "
                "milestones=100,200; lengths are in updates and may be expressions: "
                "'step_size=2*num_updates_per_epoch'. A wrong key lists those that there are.")
      .add("warmup-epochs", "X", &options.warmup_epochs,
           "Epochs of linear warm-up, whole or not, with any scheduler; 0.5 for cosine if not "
           "given, else none.",
           cli::not_negative())
      .add_switch("allow-changed-schedule-length", &options.allow_changed_schedule_length,
                  "Lets --resume continue with a schedule of another class or length, as that of a "
                  "run of more epochs.");
}

void add_machine_options(cli::CommandLine& command_line, Options& options) {
  command_line.add_group("Machine")
      .add("device", "NAME", &options.device,
           "cpu, cuda, cuda:1, ...; auto takes a CUDA device if there is one, each process of a "
           "host another.")
      .add_choice("precision", &options.precision, {"fp32", "bf16", "fp16"},
                  "What the network computes in; its weights stay in fp32.")
      .add_switch("channels-last", &options.channels_last,
                  "Keeps images and filters in memory with the channels last.")
      .add_switch("graph", &options.graph,
                  "Records a step as a CUDA graph and replays it; leaves out a last batch that is "
                  "not full.")
      .add_switch("deterministic", &options.deterministic,
                  "Uses only operations that give the same result each time.")
      .add("threads", "N", &options.threads, "LibTorch's threads; 0 leaves that to LibTorch.",
           cli::in_range(0, kMaxThreads))
      .add("workers", "N", &options.workers, "Threads that prepare batches ahead of the loop.",
           cli::in_range(0, kMaxThreads))
      .add("seed", "N", &options.seed, "Seed of the weights and of the shuffling.");
}

void add_distributed_options(cli::CommandLine& command_line, Options& options) {
  command_line.add_group("Several processes (torchrun, mpirun, srun)")
      .add_choice("backend", &options.backend, {"auto", "gloo", "nccl"},
                  "What moves the tensors; auto takes NCCL on CUDA devices, else Gloo.")
      .add("timeout", "SECONDS", &options.timeout,
           "How long the processes wait for each other before that is an error.",
           cli::in_range(1, kMaxTimeout))
      .add_choice("compression", &options.compression, {"none", "fp16", "bf16"},
                  "What gradients are sent as.")
      .add_switch("find-unused-parameters", &options.find_unused_parameters,
                  "Allows steps whose loss does not reach all parameters.")
      .add_switch("sync-batchnorm", &options.sync_batchnorm,
                  "Normalises over the batches of all processes together.")
      .add("zero", "0|1|2", &options.zero,
           "Shares out the optimizer's state (1), and the gradients as well (2).",
           cli::in_range(0, 2))
      .add("local-sgd", "N", &options.local_sgd,
           "Averages the weights after every N-th update, in place of the gradients; 0 does not.",
           cli::at_least(0));
}

void add_output_options(cli::CommandLine& command_line, Options& options) {
  command_line.add_group("Output")
      .add("output-dir", "DIR", &options.output_dir,
           "Folder of the checkpoint, unless --save names its file.")
      .add("save", "FILE", &options.save,
           "Checkpoint of model, optimizer and scheduler at the end; fashion_mnist.pt in "
           "--output-dir if not given.")
      .add("save-every-updates", "N", &options.save_every_updates,
           "Saves a training state after every N-th update, in OUTPUT_DIR/states.",
           cli::at_least(1))
      .add("save-every-epochs", "N", &options.save_every_epochs,
           "Saves a training state after every N-th epoch.", cli::at_least(1))
      .add("keep", "N", &options.keep, "Training states that are kept; 2 if not given.",
           cli::at_least(1))
      .add_switch("async-save", &options.async_save, "Writes training states while training.")
      .add("resume", "DIR|latest", &options.resume,
           "Goes on from a training state: its folder, or the newest in OUTPUT_DIR/states.")
      .add("save-init", "FILE", &options.save_init,
           "State dict of the model before the first update.")
      .add("report", "FILE", &options.report, "What happened, one JSON object a line.")
      .add_switch("report-updates", &options.report_updates,
                  "Has the report tell of each update as well.")
      .add_choice("progress", &options.progress, {"auto", "bar", "plain", "none"},
                  "A bar, plain lines or nothing while it runs; auto shows a bar on a terminal.");
}

void add_watching_options(cli::CommandLine& command_line, Options& options) {
  command_line.add_group("Callbacks and trackers")
      .add_list("callbacks", "NAME[:KEY=VALUE,...]", &options.callbacks,
                "Adds a callback: " + c10::Join(", ", linkboy::callback_names()) +
                    ", freeze. May be given several times.")
      .add_switch("list-callbacks", &options.list_callbacks,
                  "Prints the callbacks with their options and defaults, and exits.")
      .add_switch("low-overhead", &options.low_overhead,
                  "Watches nothing and prints nothing while it runs; a NaN does not end it.")
      .add_switch("metrics", &options.metrics,
                  "Measures precision, recall, F1 and Cohen's kappa as well.")
      .add("tensorboard", "DIR", &options.tensorboard, "Event files for TensorBoard.")
      .add("mlflow", "DIR", &options.mlflow, "A file store of MLflow.")
      .add("csv", "FILE", &options.csv, "All numbers as a table.")
      .add("json-lines", "FILE", &options.json_lines,
           "All that is tracked, one JSON object a line.")
      .add("html-report", "FILE", &options.html_report, "A page with charts, to open in a browser.")
      .add("track-every-updates", "N", &options.track_every_updates,
           "How often the trackers get loss, learning rate and speed; 50 if not given.",
           cli::at_least(1))
      .add("track-histograms", "N", &options.track_histograms,
           "Has the trackers get all weights and gradients in every N-th epoch.", cli::at_least(1));
}

/// Contradictions that no option shows alone.
void check_together(const Options& options) {
  if (options.momentum != 0.0 && options.optimizer != "sgd") {
    throw cli::UsageError(c10::str("--momentum is ", options.momentum, ", but ", options.optimizer,
                                   " has none; leave it out or take --optimizer sgd."));
  }
  if (options.momentum >= 1.0) {
    throw cli::UsageError(c10::str("--momentum is ", options.momentum,
                                   "; it must be below 1, or nothing is forgotten."));
  }
  if (options.device != "auto") {
    try {
      const c10::Device device(options.device);
    } catch (const c10::Error&) {
      throw cli::UsageError(
          "--device is '" + options.device +
          "'; it must be auto, cpu, cuda or cuda:N, or the name of another device of "
          "LibTorch's.");
    }
  }
  if (!options.init_key.empty() && !options.init) {
    throw cli::UsageError("--init-key needs a file; name it with --init FILE.");
  }
  if (options.checkpoint_to_load && (options.init || options.resume)) {
    throw cli::UsageError(
        "--checkpoint and --init or --resume are both given; they all say where to start. Give "
        "one of them.");
  }
  if (options.report_updates && !options.report) {
    throw cli::UsageError("--report-updates needs a report; name its file with --report FILE.");
  }
  if (options.local_sgd > 0 && options.compression != "none") {
    throw cli::UsageError(
        "--compression and --local-sgd are both given, but with the latter no gradients are sent. "
        "Give one of them.");
  }
  const bool has_tracker = options.tensorboard || options.mlflow || options.csv ||
                           options.json_lines || options.html_report;
  if (options.track_histograms && !has_tracker) {
    throw cli::UsageError(
        "--track-histograms needs a tracker; give --tensorboard DIR or another one.");
  }
  if (options.track_every_updates && !has_tracker) {
    throw cli::UsageError(
        "--track-every-updates needs a tracker; give --tensorboard DIR or another one.");
  }
  if ((options.keep || options.async_save) && !options.saves_states()) {
    throw cli::UsageError(
        "--keep and --async-save are about training states, but none are saved; give "
        "--save-every-updates N or --save-every-epochs N.");
  }
  if (options.low_overhead && (options.progress == "bar" || options.progress == "plain")) {
    throw cli::UsageError("--low-overhead shows no progress; leave out --progress " +
                          options.progress + ".");
  }
  make_scheduler_fn(options);
  check_callbacks(options);
  std::vector<std::filesystem::path> outputs{options.checkpoint().lexically_normal()};
  for (const auto& path :
       {options.save_init, options.report, options.csv, options.json_lines, options.html_report}) {
    if (path && *path != "/dev/null") outputs.push_back(path->lexically_normal());
  }
  std::sort(outputs.begin(), outputs.end());
  const auto twin = std::adjacent_find(outputs.begin(), outputs.end());
  if (twin != outputs.end()) {
    throw cli::UsageError(c10::str(*twin,
                                   " is to be written twice; --save, --save-init, --report, "
                                   "--csv, --json-lines and --html-report must name different "
                                   "files."));
  }
}

}  // namespace

linkboy::AcceleratorOptions Options::accelerator() const {
  return {.device = device,
          .precision = linkboy::from_text<linkboy::Precision>(precision),
          .channels_last = channels_last,
          .deterministic = deterministic,
          .distributed = {.backend = linkboy::from_text<linkboy::Backend>(backend),
                          .timeout = std::chrono::seconds(timeout),
                          .find_unused_parameters = find_unused_parameters,
                          .compression = linkboy::from_text<linkboy::Compression>(compression),
                          .local_sgd_interval = local_sgd,
                          .zero_stage = zero}};
}

std::filesystem::path Options::checkpoint() const {
  return save.value_or(output_dir / "fashion_mnist.pt");
}

linkboy::CreateSchedulerFn make_scheduler_fn(const Options& options) {
  // Half an epoch, but no more than half of a very short run.
  const char* const cosine_warmup =
      "min(0.5, num_updates / num_updates_per_epoch / 2) * num_updates_per_epoch";
  auto settings = cli::split_settings("scheduler-option", options.scheduler_options);
  linkboy::CreateSchedulerFn schedule;
  double warmup_epochs = options.warmup_epochs.value_or(0.0);
  if (options.scheduler == "none") {
    if (!settings.empty()) {
      throw cli::UsageError("--scheduler-option is given, but --scheduler is none; name one.");
    }
  } else {
    const bool is_cosine = options.scheduler == "cosine";
    const auto own = std::find_if(settings.begin(), settings.end(), [&](const auto& setting) {
      return is_cosine &&
             (setting.first == "warmup_updates" || setting.first == "num_warmup_epochs");
    });
    if (own != settings.end() && options.warmup_epochs) {
      throw cli::UsageError("--warmup-epochs and --scheduler-option " + own->first +
                            " are both given; give one.");
    }
    if (is_cosine && own == settings.end()) {
      settings.emplace_back("warmup_updates", options.warmup_epochs
                                                  ? linkboy::to_text(*options.warmup_epochs) +
                                                        " * num_updates_per_epoch"
                                                  : cosine_warmup);
      warmup_epochs = 0.0;
    }
    schedule = as_usage([&] { return linkboy::make_scheduler_fn(options.scheduler, settings); });
  }
  if (warmup_epochs > 0.0) {
    schedule = linkboy::warmup(
        {.scheduler = std::move(schedule),
         .warmup_updates = warmup_epochs * linkboy::placeholders::num_updates_per_epoch});
  }
  if (!schedule) return nullptr;
  return [schedule = std::move(schedule)](torch::optim::Optimizer& optimizer,
                                          const linkboy::RunConfig& config) {
    return as_usage([&] { return schedule(optimizer, config); });
  };
}

bool Options::saves_states() const {
  const bool is_named = std::any_of(callbacks.begin(), callbacks.end(), [](const auto& text) {
    return text.substr(0, text.find(':')) == "save-training-state";
  });
  return save_every_updates || save_every_epochs || (resume && !is_named);
}

std::optional<Options> parse_options(const cli::Arguments& arguments) {
  Options options;
  cli::CommandLine command_line(
      "fashion_mnist",
      "Trains a network on the 60,000 images of Fashion-MNIST and tests it on 10,000 others.\n"
      "Several processes share the work if torchrun, mpirun or srun starts them; the first of "
      "them\n"
      "prints and writes.\n"
      "Exit status: 0 success, 1 error, 2 wrong usage, 128 + N stopped by signal N (of several\n"
      "processes, those that got it).");
  add_data_options(command_line, options);
  add_model_options(command_line, options);
  add_training_options(command_line, options);
  add_optimizer_options(command_line, options);
  add_machine_options(command_line, options);
  add_distributed_options(command_line, options);
  add_output_options(command_line, options);
  add_watching_options(command_line, options);
  if (!command_line.parse(arguments)) return std::nullopt;
  if (options.list_callbacks) {
    std::cout << list_callbacks();
    return std::nullopt;
  }
  check_together(options);
  return options;
}

void check_outputs(const Options& options) {
  linkboy::check_writable(options.checkpoint());
  if (options.save_init) linkboy::check_writable(*options.save_init);
  if (options.saves_states()) linkboy::check_writable(options.states() / "writable");
  // Beside a terminal or a pipe there is no place where check_writable could try.
  if (options.report && !std::filesystem::is_other(*options.report)) {
    linkboy::check_writable(*options.report);
  }
}

}  // namespace fashion_mnist
