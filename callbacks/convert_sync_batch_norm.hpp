#pragma once

#include "linkboy/callback.hpp"
#include "linkboy/distributed/sync_batch_norm.hpp"
#include "linkboy/export.hpp"

namespace linkboy {

/// Has batch-norm layers normalise over the batches of all processes, in training: see
/// `convert_sync_batchnorm`. From the first run's start until the callback is gone. Alone, a
/// process needs none of it.
class LINKBOY_API ConvertSyncBatchNorm : public Callback {
 public:
  /// @throws Error as `convert_sync_batchnorm`.
  void on_training_run_start(Trainer& trainer) override;

  /// Layers that are converted; 0 before the first run.
  int64_t num_layers() const { return handle_.num_layers(); }

 private:
  SyncBatchNormHandle handle_;
};

}  // namespace linkboy
