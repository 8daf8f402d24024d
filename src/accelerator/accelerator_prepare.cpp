// Moves models and loaders to the device, and collects the tensors that all ranks must share.

#include <algorithm>
#include <string>
#include <unordered_set>
#include <utility>

#include "accelerator/accelerator_implementation.hpp"
#include "accelerator/share_between_ranks.hpp"
#include "checkpoint/named_tensors.hpp"
#include "data/device_loader.hpp"
#include "precision/fused_step.hpp"
#include "util/parameters.hpp"

namespace linkboy {
namespace {

/// Collects the tensors that must be the same on all ranks.
class SharedTensorsOf {
 public:
  explicit SharedTensorsOf(const Model& model) {
    add(model.named_tensors(), model.parameters());
    reduced_ = model.parameters();
  }

  void add(const torch::nn::Module& module, const std::string& name) {
    NamedTensors tensors = named_tensors_of(module);
    for (auto& [own_name, tensor] : tensors) own_name = name + "." + own_name;
    add(tensors, module.parameters());
  }

  /// Adds parameters outside the model that the optimizer trains, such as those of the loss
  /// function.
  void add(const torch::optim::Optimizer& optimizer) {
    std::unordered_set<const at::TensorImpl*> are_reduced;
    for (const auto& parameter : reduced_) are_reduced.insert(parameter.unsafeGetTensorImpl());
    for (const auto& parameter : parameters_of(optimizer)) {
      if (!are_reduced.insert(parameter.unsafeGetTensorImpl()).second) continue;
      reduced_.push_back(parameter);
      add({{"optimizer's parameter " + std::to_string(reduced_.size()), parameter}}, {parameter});
    }
  }

  /// Removes the parameters of another optimizer and returns them as a separate group.
  SharedTensors take(const torch::optim::Optimizer& optimizer, std::size_t number) {
    std::unordered_set<const at::TensorImpl*> taken;
    SharedTensors group;
    for (const auto& parameter : parameters_of(optimizer)) {
      const at::TensorImpl* identity = parameter.unsafeGetTensorImpl();
      if (taken_.contains(identity) || !taken.insert(identity).second) continue;
      group.reduced.push_back(parameter);
      const auto same = [&](const auto& named) { return named.second.is_same(parameter); };
      const auto known = std::find_if(named_.begin(), named_.end(), same);
      if (known != named_.end()) {
        group.named.push_back(*known);
        named_.erase(known);
      } else {
        group.named.emplace_back(
            c10::str("parameter ", group.reduced.size(), " of optimizer ", number + 2), parameter);
      }
    }
    std::erase_if(reduced_, [&](const auto& parameter) {
      return taken.contains(parameter.unsafeGetTensorImpl());
    });
    std::erase_if(buffers_, [&](const auto& tensor) {  // buffers that are trained
      return taken.contains(tensor.unsafeGetTensorImpl());
    });
    taken_.merge(taken);
    return group;
  }

  SharedTensors get() && { return {std::move(named_), std::move(reduced_), std::move(buffers_)}; }

 private:
  void add(const NamedTensors& named, const std::vector<at::Tensor>& parameters) {
    std::unordered_set<const at::TensorImpl*> are_parameters;
    for (const auto& parameter : parameters) are_parameters.insert(parameter.unsafeGetTensorImpl());
    for (const auto& entry : named) {
      const at::TensorImpl* identity = entry.second.unsafeGetTensorImpl();
      if (!known_.insert(identity).second) continue;
      named_.push_back(entry);
      if (!are_parameters.contains(identity)) buffers_.push_back(entry.second);
    }
  }

  NamedTensors named_;
  std::vector<at::Tensor> reduced_, buffers_;
  std::unordered_set<const at::TensorImpl*> taken_;
  std::unordered_set<const at::TensorImpl*> known_;
};

}  // namespace

void Accelerator::prepare(Model& model, const torch::optim::Optimizer* optimizer,
                          const std::vector<std::shared_ptr<torch::nn::Module>>& others,
                          const std::vector<const torch::optim::Optimizer*>& other_optimizers,
                          bool is_for_evaluation) {
  model.to(impl_->device_);
  if (impl_->channels_last_) model.to(at::MemoryFormat::ChannelsLast);
  std::vector<const torch::optim::Optimizer*> optimizers;
  if (optimizer) optimizers.push_back(optimizer);
  optimizers.insert(optimizers.end(), other_optimizers.begin(), other_optimizers.end());
  for (const torch::optim::Optimizer* each : optimizers) {
    move_state_to_parameters(*each);
    if (is_for_evaluation) continue;
    // Another optimizer may have had the same address.
    impl_->partly_fused_.erase(each);
    if (impl_->distributed_.local_sgd_interval > 0) impl_->num_steps_of(*each) = 0;
  }
  SharedTensorsOf all(model);
  for (std::size_t i = 0; i < others.size(); ++i) {
    all.add(*others[i], "registered module " + std::to_string(i));
  }
  if (optimizer) all.add(*optimizer);
  std::vector<SharedTensors> groups;
  for (std::size_t i = 0; i < other_optimizers.size(); ++i) {
    groups.push_back(all.take(*other_optimizers[i], i));
  }
  groups.insert(groups.begin(), std::move(all).get());
  for (const SharedTensors& group : groups) impl_->choose_shards(group.reduced);
  if (impl_->process_group_->size() == 1) return;
  if (impl_->zero_) {
    for (const torch::optim::Optimizer* each : optimizers) impl_->zero_->assign(*each);
  }
  for (SharedTensors& group : groups) {
    impl_->average(std::move(group), /*has_owners=*/impl_->zero_ && !optimizers.empty(),
                   /*keeps_weights=*/is_for_evaluation && has_own_weights());
  }
}

/// With zero_stage 3, finds or makes the shards. Another Accelerator, which may no longer exist,
/// may have distributed the parameters.
void Accelerator::Implementation::choose_shards(const std::vector<at::Tensor>& parameters) {
  const bool distributes = distributed_.zero_stage == 3 && mesh_->size(MeshDim::shard) > 1;
  for (const at::Tensor& parameter : parameters) {
    const auto present =
        std::dynamic_pointer_cast<ParameterShards>(parameter_gate::owner_of(parameter));
    if (!present || present == shards_) continue;
    LINKBOY_CHECK_OPTION(distributes && present->is_for(*mesh_->group({MeshDim::shard}),
                                                        *mesh_->group({MeshDim::data})),
                         "an Accelerator with zero_stage 3 has distributed the parameters over its "
                         "processes. Use zero_stage 3 here, too, with the same processes and the "
                         "same parallel.");
    LINKBOY_CHECK_OPTION(!shards_ || shards_->is_empty(),
                         "two Accelerators with zero_stage 3 have distributed the parameters. Give "
                         "each training its own Accelerator.");
    shards_ = present;
  }
  if (distributes && !shards_) {
    shards_ = ParameterShards::make(*mesh_->group({MeshDim::shard}), mesh_->group({MeshDim::data}),
                                    distributed_, device_);
  }
}

/// Broadcasts the tensors of rank 0 to all ranks, and lets `backward` average the gradients.
/// @param keeps_weights  Whether tensors that were broadcast before stay as they are.
void Accelerator::Implementation::average(SharedTensors tensors, bool has_owners,
                                          bool keeps_weights) {
  std::erase_if(reducers_, [&](const auto& reducer) {
    return reducer->overlaps(tensors.reduced) && !reducer->is_for(tensors);
  });
  for (const auto& reducer : reducers_) {
    if (!reducer->is_for(tensors)) continue;
    if (!keeps_weights) reducer->synchronize();
    return;
  }
  GradientReducer::OwnerOf owner_of;
  if (has_owners) {
    owner_of = [zero = zero_.get()](const at::Tensor& parameter) {
      return zero->owner_of(parameter);
    };
  }
  reducers_.push_back(std::make_unique<GradientReducer>(
      process_group_, distributed_, std::move(tensors), std::move(owner_of), shards_));
}

std::shared_ptr<DataLoader> Accelerator::prepare(std::shared_ptr<DataLoader> loader) const {
  loader = share_between_ranks(std::move(loader), *impl_->mesh_, /*even_batches=*/true);
  if (impl_->device_.is_cpu() && !impl_->channels_last_) return loader;
  return std::make_shared<DeviceLoader>(std::move(loader), impl_->device_, impl_->channels_last_);
}

}  // namespace linkboy
