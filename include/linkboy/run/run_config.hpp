#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "linkboy/export.hpp"
#include "linkboy/run/precision.hpp"
#include "linkboy/util/text_options.hpp"

namespace linkboy {

/// Lengths and sizes of a run, which result from its options, data and processes.
/// `Trainer::create_run_config` creates it once per run; it does not change during the run.
///
/// An *update* is one optimizer step of this run, the same on every rank.
struct LINKBOY_API RunConfig {
  /// Number of epochs of this run, including a partial last one.
  int64_t num_epochs = 0;
  /// Number of updates per epoch. The last update of an epoch may have a shorter accumulation
  /// window.
  int64_t num_updates_per_epoch = 0;
  /// Number of updates in the entire run: `TrainOptions::max_num_updates` if that is set.
  int64_t max_num_updates = 0;

  /// Number of training batches per epoch on one process.
  int64_t num_train_batches_per_epoch = 0;
  /// Number of batches per evaluation on one process (the largest if the processes differ); 0 if
  /// there is no evaluation data.
  int64_t num_eval_batches_per_epoch = 0;

  /// Number of micro-steps per update.
  int64_t gradient_accumulation_steps = 1;
  /// The value of `TrainOptions::gradient_clip_value`.
  std::optional<double> gradient_clip_value{};
  /// The value of `TrainOptions::gradient_clip_norm`.
  std::optional<double> gradient_clip_norm{};

  /// Samples in a training batch of one process.
  int64_t train_per_device_batch_size = 0;
  /// Samples in an evaluation batch of one process; 0 if there is no evaluation data.
  int64_t eval_per_device_batch_size = 0;
  /// Samples in one update: per-device batch size * processes * accumulation steps.
  int64_t train_total_batch_size = 0;
  /// Samples in one evaluation batch, summed over all processes.
  int64_t eval_total_batch_size = 0;

  /// Number of processes that share the batches.
  int64_t num_processes = 1;
  /// Whether there are several processes.
  bool is_distributed = false;
  /// Whether this process is the first on its host.
  bool is_local_main_process = true;
  /// Whether this process is rank 0.
  bool is_main_process = true;

  /// The device, in LibTorch's notation: "cpu", "cuda:0".
  std::string device{};
  /// The precision in which losses are computed.
  Precision precision = Precision::fp32;

  LINKBOY_FIELDS(num_epochs, num_updates_per_epoch, max_num_updates, num_train_batches_per_epoch,
                 num_eval_batches_per_epoch, gradient_accumulation_steps, gradient_clip_value,
                 gradient_clip_norm, train_per_device_batch_size, eval_per_device_batch_size,
                 train_total_batch_size, eval_total_batch_size, num_processes, is_distributed,
                 is_local_main_process, is_main_process, device, precision);

  /// Returns the members as text, one `name: value` per line.
  std::string to_string() const;
};

}  // namespace linkboy
