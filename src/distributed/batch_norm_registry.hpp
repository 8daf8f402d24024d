#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>
#include <torch/nn/modules/batchnorm.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <shared_mutex>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "linkboy/distributed/sync_batch_norm.hpp"
#include "linkboy/error.hpp"

namespace linkboy::detail {

/// The operations of a process group that synchronised layers need. Tests replace them, with
/// threads as ranks.
struct BatchNormCollectives {
  /// Returns the tensors of all ranks, stacked.
  std::function<at::Tensor(const at::Tensor& tensor)> all_gather{};
  /// Sums the tensors of all ranks, in place.
  std::function<void(const at::Tensor& tensor)> all_reduce{};
};

SyncBatchNormHandle convert_sync_batchnorm(Model& model,
                                           std::shared_ptr<const BatchNormCollectives> group);

/// A synchronised layer. A pending backward pass also owns it.
struct SyncBatchNormLayer : torch::CustomClassHolder {
  std::string name;
  at::Tensor key;  // alive while registered, so that no other tensor gets its address
  /// Set only for a layer without running statistics, whose calls are the same in training and
  /// evaluation.
  std::function<bool()> is_training;
  bool is_script = false;
  std::shared_ptr<const BatchNormCollectives> group;
  int64_t impl_index = 0;  // used in place of the index of one of LibTorch's backends
};

using SyncBatchNormLayerPtr = c10::intrusive_ptr<SyncBatchNormLayer>;

inline SyncBatchNormLayerPtr make_layer(const std::string& name, const at::Tensor& running_mean,
                                        const at::Tensor& weight,
                                        std::function<bool()> is_training) {
  LINKBOY_CHECK(
      running_mean.defined() || weight.defined(), "the batch-norm layer \"", name,
      "\" has neither running statistics nor a weight, so its calls cannot be distinguished ",
      "from those of other layers; set track_running_stats(true) or affine(true).");
  auto layer = c10::make_intrusive<SyncBatchNormLayer>();
  layer->name = name;
  layer->key = running_mean.defined() ? running_mean : weight;
  if (!running_mean.defined()) layer->is_training = std::move(is_training);
  return layer;
}

template <class BatchNorm>
void add_if_is(const std::string& name, const std::shared_ptr<torch::nn::Module>& module,
               std::vector<SyncBatchNormLayerPtr>& layers) {
  if (const auto layer = std::dynamic_pointer_cast<BatchNorm>(module)) {
    layers.push_back(make_layer(name, layer->running_mean, layer->weight,
                                [layer] { return layer->is_training(); }));
  }
}

/// Returns all layers of the model that can be synchronised. A layer may occur under several names.
inline std::vector<SyncBatchNormLayerPtr> find_batch_norm_layers(const Model& model) {
  std::vector<SyncBatchNormLayerPtr> layers;
  if (const auto module = model.module()) {
    for (const auto& item : module->named_modules()) {
      add_if_is<torch::nn::BatchNorm1dImpl>(item.key(), item.value(), layers);
      add_if_is<torch::nn::BatchNorm2dImpl>(item.key(), item.value(), layers);
      add_if_is<torch::nn::BatchNorm3dImpl>(item.key(), item.value(), layers);
    }
    return layers;
  }
  // In TorchScript, any buffer with this name is registered. That is harmless, because other layers
  // never call batch norm with it.
  for (const auto& [name, tensor] : model.named_tensors()) {
    if (!std::string_view(name).ends_with("running_mean")) continue;
    layers.push_back(make_layer(name, tensor, {}, {}));
    layers.back()->is_script = true;
  }
  return layers;
}

/// The synchronised layers of all models, by key. Thread-safe.
class SyncBatchNormRegistry {
 public:
  static constexpr int64_t kFirstImplIndex = 1'000'000;  // LibTorch's own indices are small

  static SyncBatchNormRegistry& instance() {
    static auto* registry = new SyncBatchNormRegistry();  // never deleted: handles may be static
    return *registry;
  }

  /// Adds all of the layers, or none if one is already registered.
  void add(const std::vector<SyncBatchNormLayerPtr>& layers) {
    const std::unique_lock lock(mutex_);
    for (const auto& layer : layers) {
      LINKBOY_CHECK(!layers_.contains(layer->key.unsafeGetTensorImpl()), "the layer \"",
                    layer->name, "\" is already synchronised; convert a model once, and destroy ",
                    "the handle before you convert it for another process group.");
    }
    for (const auto& layer : layers) {
      layer->impl_index = next_impl_index_++;
      layers_[layer->key.unsafeGetTensorImpl()] = layer;
      num_script_layers_ += layer->is_script ? 1 : 0;
    }
  }

  void remove(const std::vector<at::Tensor>& keys) {
    const std::unique_lock lock(mutex_);
    for (const auto& key : keys) {
      const auto node = layers_.extract(key.unsafeGetTensorImpl());
      if (!node.empty() && node.mapped()->is_script) --num_script_layers_;
    }
  }

  /// Returns the layer that calls LibTorch with these arguments; null for an ordinary call.
  static SyncBatchNormLayerPtr find_call(const std::optional<at::Tensor>& weight,
                                         const std::optional<at::Tensor>& running_mean,
                                         bool training) {
    if (!training) return {};
    const auto& key = running_mean && running_mean->defined() ? running_mean : weight;
    if (!key || !key->defined()) return {};
    auto layer = instance().find(*key);
    if (layer && layer->is_training && !layer->is_training()) return {};
    return layer;
  }

  SyncBatchNormLayerPtr find(const at::Tensor& key) const {
    const std::shared_lock lock(mutex_);
    const auto found = layers_.find(key.unsafeGetTensorImpl());
    if (found != layers_.end()) return found->second;
    if (num_script_layers_ == 0) return {};
    // TorchScript's own differentiation calls with detached tensors.
    for (const auto& [impl, layer] : layers_) {
      if (layer->is_script && layer->key.is_alias_of(key) &&
          layer->key.storage_offset() == key.storage_offset()) {
        return layer;
      }
    }
    return {};
  }

  SyncBatchNormLayerPtr find(int64_t impl_index) const {
    const std::shared_lock lock(mutex_);
    for (const auto& [impl, layer] : layers_) {
      if (layer->impl_index == impl_index) return layer;
    }
    throw Error(
        "the handle of a model's synchronised batch norm was destroyed between the forward and the "
        "backward pass of a TorchScript model; keep it until the backward pass has ended.");
  }

  std::size_t size() const {
    const std::shared_lock lock(mutex_);
    return layers_.size();
  }

 private:
  mutable std::shared_mutex mutex_;
  std::unordered_map<const at::TensorImpl*, SyncBatchNormLayerPtr> layers_;
  int64_t num_script_layers_ = 0;
  int64_t next_impl_index_ = kFirstImplIndex;
};

}  // namespace linkboy::detail
