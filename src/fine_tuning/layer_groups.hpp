// The modules and layer groups of a model, for freezing and for param groups.

#pragma once

#include <torch/nn/module.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "linkboy/model.hpp"

namespace linkboy {

/// A module of a model and the layer group that it belongs to.
struct GroupedModule {
  int64_t group;
  /// Dotted, as in the state dict; empty for the model itself.
  std::string name;
  std::shared_ptr<torch::nn::Module> module;
};

/// Returns the model's module.
/// @throws Error if the model is TorchScript.
std::shared_ptr<torch::nn::Module> require_layers(const Model& model);

/// Returns the direct children, one group each. If the module does not have children, returns the
/// module itself.
std::vector<GroupedModule> layer_groups(const std::shared_ptr<torch::nn::Module>& root);

/// Returns all modules, parents before their children, in the order of the state dict. The root
/// comes first and belongs to group 0. A module that is registered twice appears twice.
std::vector<GroupedModule> grouped_modules(const std::shared_ptr<torch::nn::Module>& root);

/// A parameter, the module that it belongs to directly, and the layer group.
struct GroupedParameter {
  int64_t group;
  /// Dotted, as in the state dict.
  std::string name;
  /// Within the module.
  std::string own_name;
  std::shared_ptr<torch::nn::Module> module;
  at::Tensor tensor;
};

/// Returns all parameters in the order of `grouped_modules`, each once, including frozen ones. If
/// `in_groups` is given, only those of the modules in these layer groups.
std::vector<GroupedParameter> grouped_parameters(
    const std::shared_ptr<torch::nn::Module>& root,
    std::optional<std::pair<int64_t, int64_t>> in_groups = {});

}  // namespace linkboy
