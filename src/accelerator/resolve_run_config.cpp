// Computes the lengths of a run, for Trainer and Engine.

#include "accelerator/resolve_run_config.hpp"

#include <limits>

#include "distributed/agreement.hpp"
#include "linkboy/accelerator.hpp"
#include "linkboy/error.hpp"
#include "util/ceil_div.hpp"

namespace linkboy {

void set_training_lengths(RunConfig& config, const TrainOptions& options) {
  config.train_total_batch_size = config.train_per_device_batch_size * config.num_processes *
                                  config.gradient_accumulation_steps;
  config.num_updates_per_epoch =
      ceil_div(config.num_train_batches_per_epoch, config.gradient_accumulation_steps);
  if (options.max_num_updates) {
    config.num_epochs = ceil_div(config.max_num_updates, config.num_updates_per_epoch);
  } else {
    // A run without a planned end may use the largest number as its number of epochs.
    constexpr int64_t kMost = std::numeric_limits<int64_t>::max();
    const int64_t per_epoch = config.num_updates_per_epoch;
    const bool overflows = per_epoch > 0 && config.num_epochs > kMost / per_epoch;
    config.max_num_updates = overflows ? kMost : config.num_epochs * per_epoch;
  }
}

RunConfig resolve_run_config(const Accelerator& accelerator, const TrainOptions& options,
                             const DataLoader* train_dataloader,
                             const DataLoader* eval_dataloader) {
  RunConfig config;
  config.num_processes = accelerator.num_processes();
  config.is_distributed = config.num_processes > 1;
  config.is_local_main_process = accelerator.is_local_main_process();
  config.is_main_process = accelerator.is_main_process();
  config.device = accelerator.device().str();
  config.precision = accelerator.precision();
  config.gradient_accumulation_steps = options.gradient_accumulation_steps;
  config.gradient_clip_value = options.gradient_clip_value;
  config.gradient_clip_norm = options.gradient_clip_norm;
  config.num_epochs = options.num_epochs.value_or(0);
  config.max_num_updates = options.max_num_updates.value_or(0);
  if (eval_dataloader != nullptr) {
    config.num_eval_batches_per_epoch =
        max_over_ranks(accelerator.world(), eval_dataloader->size());
    config.eval_per_device_batch_size = eval_dataloader->batch_size();
    config.eval_total_batch_size = config.eval_per_device_batch_size * config.num_processes;
  }
  if (train_dataloader == nullptr) return config;

  config.num_train_batches_per_epoch = train_dataloader->size();
  LINKBOY_CHECK(config.num_train_batches_per_epoch >= 1, "the training loader's size() is ",
                config.num_train_batches_per_epoch,
                "; an epoch must have at least 1 batch. Use more data or smaller batches.");
  config.train_per_device_batch_size = train_dataloader->batch_size();
  set_training_lengths(config, options);
  return config;
}

}  // namespace linkboy
