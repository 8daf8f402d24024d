// Freezes and unfreezes layer groups, and keeps the modules that should stay in evaluation mode.

#include "linkboy/fine_tuning/model_freezer.hpp"

#include <torch/nn/modules/batchnorm.h>

#include <algorithm>

#include "fine_tuning/layer_groups.hpp"
#include "linkboy/error.hpp"

namespace linkboy {
namespace {

using torch::nn::Module;

bool is_batch_norm(const Module& module) {
  return dynamic_cast<const torch::nn::BatchNorm1dImpl*>(&module) != nullptr ||
         dynamic_cast<const torch::nn::BatchNorm2dImpl*>(&module) != nullptr ||
         dynamic_cast<const torch::nn::BatchNorm3dImpl*>(&module) != nullptr;
}

/// Whether a parameter can be trained. Integers (of a quantized layer, for example) cannot.
bool can_be_trained(const at::Tensor& parameter) {
  return at::isFloatingType(parameter.scalar_type()) || at::isComplexType(parameter.scalar_type());
}

/// Sets `requires_grad` of the module's own parameters and adds the changed ones to `changed`.
void set_requires_grad(const GroupedModule& part, bool value, ParametersByGroup& changed) {
  for (at::Tensor& parameter : part.module->parameters(/*recurse=*/false)) {
    if (!parameter.defined() || parameter.requires_grad() == value || !can_be_trained(parameter)) {
      continue;
    }
    parameter.set_requires_grad(value);
    // Otherwise, an optimizer would use the gradient that remains from an incomplete accumulation
    // window.
    if (!value) parameter.mutable_grad().reset();
    changed[part.group].push_back(parameter);
  }
}

bool is_any_frozen(const Module& module) {
  const auto parameters = module.parameters();
  return std::any_of(parameters.begin(), parameters.end(), [](const at::Tensor& parameter) {
    return parameter.defined() && !parameter.requires_grad();
  });
}

}  // namespace

ModelFreezer::ModelFreezer(Model model, ModelFreezerOptions options)
    : module_(require_layers(model)), options_(options) {
  if (options_.unfreeze_all) unfreeze({.set_modules_as_training = false});
}

std::pair<int64_t, int64_t> ModelFreezer::range_of(int64_t from_index, int64_t to_index) const {
  const auto num_groups = static_cast<int64_t>(layer_groups(module_).size());
  for (int64_t index : {from_index, to_index}) {
    LINKBOY_CHECK(index >= -num_groups && index < num_groups, "there is no layer group ", index,
                  ": the model has ", num_groups, " layer group(s). Use an index from ",
                  -num_groups, " to ", num_groups - 1, ".");
  }
  const int64_t first = from_index < 0 ? from_index + num_groups : from_index;
  const int64_t last = to_index < 0 ? to_index + num_groups : to_index;
  return std::minmax({first, last});
}

ParametersByGroup ModelFreezer::freeze(const FreezeOptions& options) {
  const auto [first, last] = range_of(options.from_index, options.to_index);
  ParametersByGroup changed;
  for (const GroupedModule& part : grouped_modules(module_)) {
    if (part.group < first || part.group > last) continue;
    if (is_batch_norm(*part.module) && !options_.freeze_batch_norms) continue;
    set_requires_grad(part, false, changed);
    if (options.set_modules_as_eval && can_hold_in_eval(*part.module)) {
      held_in_eval_.insert(part.module);
    }
  }
  apply_modes();
  return changed;
}

ParametersByGroup ModelFreezer::unfreeze(const UnfreezeOptions& options) {
  const auto [first, last] = range_of(options.from_index, options.to_index);
  ParametersByGroup changed;
  Modules to_train;
  for (const GroupedModule& part : grouped_modules(module_)) {
    if (part.group < first || part.group > last) continue;
    set_requires_grad(part, true, changed);
    if (options.set_modules_as_training && can_hold_in_eval(*part.module)) {
      to_train.insert(part.module);
      held_in_eval_.erase(part.module);
    }
  }
  if (!to_train.empty()) set_modes(to_train);
  return changed;
}

/// A root with children is excluded: its mode is the mode of the entire model, not that of group 0.
bool ModelFreezer::can_hold_in_eval(const Module& module) const {
  return &module != module_.get() || module_->children().empty();
}

void ModelFreezer::apply_modes() {
  const bool is_any_training =
      std::any_of(held_in_eval_.begin(), held_in_eval_.end(),
                  [](const std::shared_ptr<Module>& module) { return module->is_training(); });
  if (is_any_training) set_modes({});
}

void ModelFreezer::set_modes(const Modules& to_train) {
  const std::vector<GroupedModule> parts = grouped_modules(module_);
  std::vector<std::pair<Module*, bool>> modes;
  for (const GroupedModule& part : parts) {
    const bool is_training = part.module->is_training() || to_train.contains(part.module);
    modes.emplace_back(part.module.get(), is_training && !held_in_eval_.contains(part.module));
  }
  // A module's train() also reaches its children. They come after it, each with its own mode.
  for (const auto& [module, is_training] : modes) module->train(is_training);
}

std::vector<Layer> ModelFreezer::get_layer_groups() const {
  std::vector<Layer> groups;
  for (const auto& [group, name, module] : layer_groups(module_)) {
    groups.push_back({group, name, module, is_any_frozen(*module)});
  }
  return groups;
}

std::vector<Layer> ModelFreezer::get_layers() const {
  std::vector<Layer> layers;
  for (const auto& [group, name, module] : grouped_modules(module_)) {
    if (!module->children().empty()) continue;
    layers.push_back({group, name, module, is_any_frozen(*module)});
  }
  return layers;
}

std::vector<at::Tensor> ModelFreezer::get_trainable_parameters() const {
  std::vector<at::Tensor> trainable;
  for (const GroupedParameter& parameter : grouped_parameters(module_)) {
    if (parameter.tensor.requires_grad()) trainable.push_back(parameter.tensor);
  }
  return trainable;
}

std::vector<at::Tensor> ModelFreezer::get_frozen_parameters(int64_t from_index,
                                                            int64_t to_index) const {
  std::vector<at::Tensor> frozen;
  for (const GroupedParameter& parameter :
       grouped_parameters(module_, range_of(from_index, to_index))) {
    if (!parameter.tensor.requires_grad()) frozen.push_back(parameter.tensor);
  }
  return frozen;
}

}  // namespace linkboy
