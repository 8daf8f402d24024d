// The modules and layer groups of a model, for freezing and for param groups.

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

/// Returns the model's module.
/// @throws Error if the model is TorchScript.
std::shared_ptr<torch::nn::Module> require_layers(const Model& model);

/// Returns the direct children, one group each. If the module does not have children, returns the
/// module itself.
std::vector<GroupedModule> layer_groups(const std::shared_ptr<torch::nn::Module>& root);

/// Returns all modules, parents before their children, in the order of the state dict. The root
/// comes first and belongs to group 0. A module that is registered twice appears twice.
std::vector<GroupedModule> grouped_modules(const std::shared_ptr<torch::nn::Module>& root);

/// Joins two names: "block" and "weight" become "block.weight".
std::string joined_name(const std::string& module, const std::string& name);

}  // namespace linkboy
