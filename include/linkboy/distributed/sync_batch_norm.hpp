#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "linkboy/distributed/process_group.hpp"
#include "linkboy/export.hpp"
#include "linkboy/model.hpp"

namespace linkboy {

/// While it lives, the batch-norm layers that `convert_sync_batchnorm` found are synchronised. It
/// keeps the process group alive, and of each layer its running mean (or its weight), not the
/// model.
class [[nodiscard]] LINKBOY_API SyncBatchNormHandle {
 public:
  SyncBatchNormHandle() = default;
  /// The layers are ordinary ones again. A backward that is still to come is not affected, but a
  /// TorchScript model's may throw Error.
  ~SyncBatchNormHandle();
  /// Takes the layers over.
  SyncBatchNormHandle(SyncBatchNormHandle&& other) noexcept = default;
  /// Gives up its own layers and takes the others over.
  SyncBatchNormHandle& operator=(SyncBatchNormHandle&& other) noexcept;

  /// Layers that are converted.
  int64_t num_layers() const { return static_cast<int64_t>(keys_.size()); }

  /// For linkboy's own sources.
  explicit SyncBatchNormHandle(std::vector<at::Tensor> keys) : keys_(std::move(keys)) {}

 private:
  std::vector<at::Tensor> keys_;
};

/// Makes the model's BatchNorm1d, 2d and 3d layers normalise, in training, over the batches of all
/// ranks: outputs, running statistics and gradients of the inputs are those of one process with the
/// whole batch. Gradients of weights and biases are this rank's share, for the Accelerator to
/// reduce like all others. Evaluation is not affected.
///
/// Modules, parameters, names and state dicts stay as they are; the model may be moved, loaded and
/// saved as before. In TorchScript the layers are those with a buffer `running_mean`, by that name.
/// A copy (`clone`) of the model is not converted, nor is a layer whose `running_mean` is replaced
/// by another tensor.
///
/// From now on each training forward of a layer is a collective of `group`, and so is its backward
/// if its input needs a gradient. Ranks may have batches of different sizes, or empty ones, but not
/// of a single value per channel (LibTorch's BatchNorm refuses it). Inputs are on the CPU or a CUDA
/// device; there is no second derivative, and a backward with create_graph throws Error.
///
/// Thread-safe with other conversions and with models that are run meanwhile, but for the first
/// conversion of the process, which must come before other threads run models: it registers kernels
/// that stay (docs/what_linkboy_touches.md).
///
/// @return What keeps the layers synchronised; with a group of one process, nothing is done.
/// @throws Error if the group is null, if a layer is synchronised already, or if it has neither
///     running statistics nor a weight to be known by.
LINKBOY_API SyncBatchNormHandle convert_sync_batchnorm(Model& model,
                                                       std::shared_ptr<const ProcessGroup> group);

}  // namespace linkboy
