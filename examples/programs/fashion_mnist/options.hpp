#pragma once

#include <cstdint>
#include <filesystem>
#include <linkboy/accelerator.hpp>
#include <linkboy/cli.hpp>
#include <linkboy/scheduler.hpp>
#include <optional>
#include <string>
#include <vector>

namespace fashion_mnist {

/// What the command line says.
struct Options {
  std::filesystem::path data = "/usr/share/datasets/fashion-mnist";
  std::optional<int64_t> limit_train;
  std::optional<int64_t> limit_eval;

  std::string model = "cnn";
  std::optional<std::filesystem::path> init;
  std::string init_key;
  std::optional<std::filesystem::path> checkpoint_to_load;

  int64_t epochs = 5;
  std::optional<int64_t> max_steps;
  int64_t batch_size = 128;
  int64_t eval_batch_size = 1000;
  int64_t gradient_accumulation_steps = 1;
  std::optional<double> clip_value;
  std::optional<double> clip_norm;
  bool no_shuffle = false;
  bool augment = false;

  std::string optimizer = "adamw";
  double lr = 3e-3;
  double momentum = 0.0;
  std::optional<double> weight_decay;
  std::string scheduler = "cosine";
  std::vector<std::string> scheduler_options;
  bool allow_changed_schedule_length = false;
  std::optional<double> warmup_epochs;

  std::string device = "auto";
  std::string precision = "fp32";
  bool channels_last = false;
  bool graph = false;
  bool deterministic = false;
  int64_t threads = 0;
  int64_t workers = 0;
  uint64_t seed = 0;

  std::string backend = "auto";
  int64_t timeout = 1800;
  std::string compression = "none";
  bool find_unused_parameters = false;
  bool sync_batchnorm = false;
  int64_t local_sgd = 0;
  int64_t zero = 0;

  std::filesystem::path output_dir = "output";
  std::optional<int64_t> save_every_updates;
  std::optional<int64_t> save_every_epochs;
  std::optional<int64_t> keep;
  bool async_save = false;
  std::optional<std::filesystem::path> resume;
  std::optional<std::filesystem::path> save;
  std::optional<std::filesystem::path> save_init;
  std::optional<std::filesystem::path> report;
  bool report_updates = false;
  std::string progress = "auto";

  std::vector<std::string> callbacks;
  bool list_callbacks = false;
  bool low_overhead = false;
  bool metrics = false;
  std::optional<std::filesystem::path> tensorboard;
  std::optional<std::filesystem::path> mlflow;
  std::optional<std::filesystem::path> csv;
  std::optional<std::filesystem::path> json_lines;
  std::optional<std::filesystem::path> html_report;
  std::optional<int64_t> track_every_updates;
  std::optional<int64_t> track_histograms;

  linkboy::AcceleratorOptions accelerator() const;
  /// Where the training states are.
  std::filesystem::path states() const { return output_dir / "states"; }
  /// Whether the program itself has training states written: after --resume, unless --callbacks
  /// does.
  bool saves_states() const;
  /// Where the checkpoint goes.
  std::filesystem::path checkpoint() const;
};

/// Reads the command line and, if it names one, the config file.
///
/// @return Nothing if the help or the list of callbacks was asked for and printed.
/// @throws linkboy::cli::UsageError as CommandLine::parse, and if two options contradict each
///         other.
std::optional<Options> parse_options(const linkboy::cli::Arguments& arguments);

/// The scheduler that the options ask for; empty for none.
/// @throws linkboy::cli::UsageError if an option of the scheduler is unknown or cannot be read.
/// What
///         is out of its range is thrown as the same when the run starts.
linkboy::CreateSchedulerFn make_scheduler_fn(const Options& options);

/// Proves that everything the run will write can be written.
/// @throws linkboy::Error that names the path.
void check_outputs(const Options& options);

}  // namespace fashion_mnist
