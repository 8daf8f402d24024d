#pragma once

#include "linkboy/callback.hpp"
#include "linkboy/distributed/sync_batch_norm.hpp"
#include "linkboy/export.hpp"
#include "linkboy/util/make.hpp"

namespace linkboy {

/// Converts the model's batch-norm layers so that, in training, they normalise over the batches of
/// all processes; see `convert_sync_batchnorm`. The layers stay converted from the start of the
/// first training run until the callback is destroyed. With one process, nothing is converted.
class LINKBOY_API ConvertSyncBatchNorm : public Callback {
 public:
  /// Converts the layers.
  /// @throws The errors of `convert_sync_batchnorm`.
  void on_training_run_start(Trainer& trainer) override;

  /// Number of converted layers; 0 before the first run.
  int64_t num_layers() const { return handle_.num_layers(); }

 private:
  SyncBatchNormHandle handle_;
};
/// Makes a ConvertSyncBatchNorm.
inline constexpr Maker<ConvertSyncBatchNorm> convert_sync_batch_norm{};

}  // namespace linkboy
