#pragma once

#include <torch/nn/module.h>

#include <cstdint>
#include <memory>
#include <string>
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

/// The model's module. @throws Error if the model is TorchScript.
std::shared_ptr<torch::nn::Module> require_layers(const Model& model);

/// The direct children, one group each; the module itself if it does not have children.
std::vector<GroupedModule> layer_groups(const std::shared_ptr<torch::nn::Module>& root);

/// All modules, parents before their children, in the order of the state dict. The root itself
/// comes first and belongs to group 0. A module that is registered twice comes twice.
std::vector<GroupedModule> grouped_modules(const std::shared_ptr<torch::nn::Module>& root);

/// "block" and "weight" are "block.weight".
std::string joined_name(const std::string& module, const std::string& name);

}  // namespace linkboy
