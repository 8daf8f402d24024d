#pragma once

#include <cstdint>
#include <functional>
#include <optional>

#include "linkboy/callback.hpp"
#include "linkboy/export.hpp"
#include "linkboy/model.hpp"
#include "linkboy/util/make.hpp"

namespace linkboy {

/// Runs the model on a batch to update its BatchNorm statistics. If empty, the model is called with
/// the batch's `input()`.
using ForwardForStatistics = std::function<void(Trainer&, const Batch&)>;

/// Recomputes the running statistics of the model's BatchNorm layers with the current weights: the
/// mean over training batches of all processes. If the model is in training mode, layers in
/// evaluation mode (frozen layers) keep their statistics. TorchScript models are not changed.
/// Afterwards each module is in the same mode as before. The batches are those of
/// `DataLoader::peek`, so the training loses none. If the data of a single stream has ended, prints
/// a warning, and all layers keep their statistics.
///
/// @param max_batches  Number of batches per process. If not set, all batches of an epoch are used;
///        those of a single stream then stay in memory until the training takes them.
/// @note Collective. Call it in a training run only.
LINKBOY_API void update_batch_norm(Trainer& trainer, const ForwardForStatistics& forward = {},
                                   std::optional<int64_t> max_batches = {});

/// Runs a batch through the model as `update_batch_norm` does, but in evaluation mode and without
/// changing anything. Does nothing if the model has no layers to update.
LINKBOY_API void try_forward_for_statistics(Trainer& trainer, const Batch& batch,
                                            const ForwardForStatistics& forward);

struct PreciseBatchNormOptions {
  /// Number of batches per process from which the statistics are computed. Must be at least 1.
  int64_t num_batches = 200;
  /// Number of epochs between two computations. Must be at least 1.
  int64_t every_n_epochs = 1;
  /// Runs the model on a batch. If empty, the model is called with `Batch::input` as its only
  /// input.
  ForwardForStatistics forward{};
  LINKBOY_FIELDS(num_batches, every_n_epochs);
  LINKBOY_FUNCTIONS(forward);
};

/// Calls `update_batch_norm` at the end of training epochs, before the evaluation. The result
/// replaces the running averages, which lag behind weights that change quickly.
class LINKBOY_API PreciseBatchNorm : public Callback {
 public:
  /// The options type for `make<PreciseBatchNorm>({...})`.
  using Options = PreciseBatchNormOptions;

  /// @throws OptionError if an option is out of range.
  explicit PreciseBatchNorm(PreciseBatchNormOptions options = {});

  void on_train_epoch_end(Trainer& trainer) override;

 private:
  PreciseBatchNormOptions options_;
};
/// Makes a PreciseBatchNorm.
inline constexpr Maker<PreciseBatchNorm> precise_batch_norm{};

}  // namespace linkboy
