#pragma once

#include <cstdint>
#include <functional>
#include <optional>

#include "linkboy/callback.hpp"
#include "linkboy/export.hpp"
#include "linkboy/model.hpp"

namespace linkboy {

/// Runs the model on a batch, for its BatchNorm statistics. Empty: on the batch's `input()`.
using ForwardForStatistics = std::function<void(Trainer&, const Batch&)>;

/// Computes the running statistics of the model's BatchNorm layers again: the mean over training
/// batches of the present weights, over all processes. While the model is in training mode, layers
/// in evaluation mode (frozen ones) keep their statistics. TorchScript models are left as they are.
/// Each module keeps its mode.
///
/// @param max_batches  Of each process; unset: all of an epoch.
/// @note Collective. In a training run only.
LINKBOY_API void update_batch_norm(Trainer& trainer, const ForwardForStatistics& forward = {},
                                   std::optional<int64_t> max_batches = {});

/// Runs a batch through the model as `update_batch_norm` would, but in evaluation mode, and changes
/// nothing. Does nothing if the model has no layers to update.
LINKBOY_API void try_forward_for_statistics(Trainer& trainer, const Batch& batch,
                                            const ForwardForStatistics& forward);

struct PreciseBatchNormOptions {
  /// Batches of each process that the statistics are made of. At least 1.
  int64_t num_batches = 200;
  /// At least 1.
  int64_t every_n_epochs = 1;
  /// How a batch goes through the model. Default: `Batch::input` is the model's only input.
  ForwardForStatistics forward{};
  LINKBOY_FIELDS(num_batches, every_n_epochs);
};

/// Calls `update_batch_norm` at the end of training epochs, before they are evaluated: running
/// averages lag behind weights that change fast.
class LINKBOY_API PreciseBatchNorm : public Callback {
 public:
  /// What `make<PreciseBatchNorm>({...})` takes.
  using Options = PreciseBatchNormOptions;

  /// @throws Error if an option is out of its range.
  explicit PreciseBatchNorm(PreciseBatchNormOptions options = {});

  void on_train_epoch_end(Trainer& trainer) override;

 private:
  PreciseBatchNormOptions options_;
};

}  // namespace linkboy
