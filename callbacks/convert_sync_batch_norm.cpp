// Converts the batch-norm layers when a run starts, after those of the previous run were released.

#include "linkboy/callbacks/convert_sync_batch_norm.hpp"

#include "linkboy/trainer.hpp"

namespace linkboy {

void ConvertSyncBatchNorm::on_training_run_start(Trainer& trainer) {
  // Releases the layers of the previous run first: a layer must not be converted twice, and the
  // model may have other layers now.
  handle_ = {};
  handle_ = convert_sync_batchnorm(trainer.model(), trainer.accelerator().shared_process_group());
}

}  // namespace linkboy
