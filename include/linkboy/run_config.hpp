#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace linkboy {

/// What a run resolved to. Made once by `Trainer::create_run_config`; constant from then on.
///
/// One unit rules: an *update* is one optimizer step of this run, the same on every rank.
struct RunConfig {
  int64_t num_epochs = 0;
  int64_t num_updates_per_epoch = 0;
  /// Updates in the whole run: `max_num_train_steps` if that was given.
  int64_t max_num_updates = 0;

  /// Batches per epoch that one process sees.
  int64_t num_train_batches_per_epoch = 0;
  /// 0 if there is no evaluation data.
  int64_t num_eval_batches_per_epoch = 0;

  int64_t gradient_accumulation_steps = 1;
  std::optional<double> gradient_clip_value{};
  std::optional<double> gradient_clip_norm{};

  /// Samples.
  int64_t train_per_device_batch_size = 0;
  int64_t eval_per_device_batch_size = 0;
  /// Samples in one update: per-device batch size * processes * accumulation steps.
  int64_t train_total_batch_size = 0;
  int64_t eval_total_batch_size = 0;

  int64_t num_processes = 1;
  bool is_distributed = false;
  bool is_local_process_zero = true;
  bool is_world_process_zero = true;

  /// As LibTorch writes it: "cpu", "cuda:0".
  std::string device{};
  /// "no", "bf16" or "fp16".
  std::string mixed_precision = "no";

  /// One `name: value` a line.
  std::string to_string() const;
};

}  // namespace linkboy
