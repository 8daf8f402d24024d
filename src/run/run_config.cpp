#include "linkboy/run/run_config.hpp"

#include <fmt/format.h>

namespace linkboy {

std::string RunConfig::to_string() const {
  auto optional = [](const std::optional<double>& value) {
    return value ? fmt::format("{}", *value) : std::string("none");
  };
  return fmt::format(
      "num_epochs: {}\n"
      "num_updates_per_epoch: {}\n"
      "max_num_updates: {}\n"
      "num_train_batches_per_epoch: {}\n"
      "num_eval_batches_per_epoch: {}\n"
      "gradient_accumulation_steps: {}\n"
      "gradient_clip_value: {}\n"
      "gradient_clip_norm: {}\n"
      "train_per_device_batch_size: {}\n"
      "eval_per_device_batch_size: {}\n"
      "train_total_batch_size: {}\n"
      "eval_total_batch_size: {}\n"
      "num_processes: {}\n"
      "is_distributed: {}\n"
      "is_local_process_zero: {}\n"
      "is_world_process_zero: {}\n"
      "device: {}\n"
      "precision: {}\n",
      num_epochs, num_updates_per_epoch, max_num_updates, num_train_batches_per_epoch,
      num_eval_batches_per_epoch, gradient_accumulation_steps, optional(gradient_clip_value),
      optional(gradient_clip_norm), train_per_device_batch_size, eval_per_device_batch_size,
      train_total_batch_size, eval_total_batch_size, num_processes, is_distributed,
      is_local_process_zero, is_world_process_zero, device, linkboy::to_string(precision));
}

}  // namespace linkboy
