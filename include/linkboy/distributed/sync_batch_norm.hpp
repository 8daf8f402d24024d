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

/// Keeps the layers that `convert_sync_batchnorm` converted synchronised while this handle exists.
/// It also keeps the process group and each layer's running mean (or weight) alive, but not the
/// model.
class [[nodiscard]] LINKBOY_API SyncBatchNormHandle {
 public:
  SyncBatchNormHandle() = default;
  /// Turns the layers back into ordinary ones. The backward pass of an earlier forward pass still
  /// works, except that for a TorchScript model it may throw Error.
  ~SyncBatchNormHandle();
  /// Takes over the other handle's layers.
  SyncBatchNormHandle(SyncBatchNormHandle&& other) noexcept = default;
  /// Releases its own layers and takes over the other handle's layers.
  SyncBatchNormHandle& operator=(SyncBatchNormHandle&& other) noexcept;

  /// Number of converted layers.
  int64_t num_layers() const { return static_cast<int64_t>(keys_.size()); }

  /// Used by linkboy's own sources.
  explicit SyncBatchNormHandle(std::vector<at::Tensor> keys) : keys_(std::move(keys)) {}

 private:
  std::vector<at::Tensor> keys_;
};

/// Makes the model's BatchNorm1d, BatchNorm2d and BatchNorm3d layers normalise over the batches of
/// all ranks in training. Outputs, running statistics and gradients of the inputs are the same as
/// in one process with the combined batch. Gradients of weights and biases are this rank's share,
/// which the Accelerator reduces like all others. Evaluation is not affected.
///
/// Modules, parameters, names and state dicts do not change; the model may be moved, loaded and
/// saved as before. In a TorchScript model, the layers are found by their `running_mean` buffers. A
/// copy (`clone`) of the model is not converted, nor is a layer whose `running_mean` is replaced by
/// another tensor.
///
/// After the conversion, each training forward pass of a layer is a collective of `group`, and so
/// is its backward pass if its input needs a gradient. The ranks' batches may differ in size and
/// may be empty, but must not have exactly one value per channel, because LibTorch's BatchNorm
/// rejects it. Inputs must be on the CPU or a CUDA device. Second derivatives are not supported: a
/// backward pass with create_graph throws Error.
///
/// Other threads may convert and run models at the same time, with one exception: the first
/// conversion in the process must finish before other threads run models, because it registers
/// kernels permanently (docs/what_linkboy_touches.md).
///
/// @return A handle that keeps the layers synchronised. With a group of one process, nothing is
///         converted.
/// @throws Error if the group is null, if a layer is already synchronised, or if a layer has
///         neither running statistics nor a weight to identify it.
LINKBOY_API SyncBatchNormHandle convert_sync_batchnorm(Model& model,
                                                       std::shared_ptr<const ProcessGroup> group);

}  // namespace linkboy
