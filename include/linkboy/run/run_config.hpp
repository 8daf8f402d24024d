#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "linkboy/export.hpp"
#include "linkboy/run/precision.hpp"
#include "linkboy/util/text_options.hpp"

namespace linkboy {

/// What a run resolved to. Made once by `Trainer::create_run_config`; constant from then on.
///
/// One unit rules: an *update* is one optimizer step of this run, the same on every rank.
struct LINKBOY_API RunConfig {
  /// Of this run, begun ones included.
  int64_t num_epochs = 0;
  /// The last one of an epoch may have a shorter window.
  int64_t num_updates_per_epoch = 0;
  /// Updates in the whole run: `max_num_updates` if that was given.
  int64_t max_num_updates = 0;

  /// Batches per epoch that one process sees.
  int64_t num_train_batches_per_epoch = 0;
  /// 0 if there is no evaluation data.
  int64_t num_eval_batches_per_epoch = 0;

  /// Micro-batches per update.
  int64_t gradient_accumulation_steps = 1;
  /// As TrainOptions.
  std::optional<double> gradient_clip_value{};
  /// As TrainOptions.
  std::optional<double> gradient_clip_norm{};

  /// Samples in a training batch of one process.
  int64_t train_per_device_batch_size = 0;
  /// Samples in an evaluation batch of one process; 0 if there is no evaluation data.
  int64_t eval_per_device_batch_size = 0;
  /// Samples in one update: per-device batch size * processes * accumulation steps.
  int64_t train_total_batch_size = 0;
  /// Samples in the evaluation batches of all processes together.
  int64_t eval_total_batch_size = 0;

  /// Processes that share the batches.
  int64_t num_processes = 1;
  /// Whether there are several.
  bool is_distributed = false;
  /// Whether this one is the first of its host.
  bool is_local_process_zero = true;
  /// Whether this one is rank 0.
  bool is_world_process_zero = true;

  /// As LibTorch writes it: "cpu", "cuda:0".
  std::string device{};
  /// What losses are computed in.
  Precision precision = Precision::fp32;

  LINKBOY_FIELDS(num_epochs, num_updates_per_epoch, max_num_updates, num_train_batches_per_epoch,
                 num_eval_batches_per_epoch, gradient_accumulation_steps, gradient_clip_value,
                 gradient_clip_norm, train_per_device_batch_size, eval_per_device_batch_size,
                 train_total_batch_size, eval_total_batch_size, num_processes, is_distributed,
                 is_local_process_zero, is_world_process_zero, device, precision);

  /// One `name: value` a line.
  std::string to_string() const;
};

}  // namespace linkboy
