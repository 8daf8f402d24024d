#pragma once

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <unordered_set>
#include <utility>
#include <vector>

#include "linkboy/export.hpp"
#include "linkboy/model.hpp"
#include "linkboy/util/text_options.hpp"

namespace linkboy {

struct ModelFreezerOptions {
  /// If false, freezing does not change the parameters and the mode of BatchNorm1d, BatchNorm2d and
  /// BatchNorm3d layers, so their statistics adapt to the new data.
  bool freeze_batch_norms = false;

  /// If true, the constructor unfreezes all parameters, so that only this object determines which
  /// ones are frozen.
  bool unfreeze_all = true;
};

/// A range of layer groups to freeze. Indexes count from 0; negative ones count from the end, so
/// that -1 is the last group. Both ends are inclusive, and their order does not matter.
struct FreezeOptions {
  /// One end of the range.
  int64_t from_index = 0;
  /// The other end.
  int64_t to_index = -2;

  /// If true, also puts the modules into evaluation mode (dropout off, running statistics fixed);
  /// `apply_modes` restores this mode later.
  bool set_modules_as_eval = false;

  LINKBOY_FIELDS(from_index, to_index, set_modules_as_eval);
};

/// A range of layer groups to unfreeze; see FreezeOptions.
struct UnfreezeOptions {
  /// One end of the range.
  int64_t from_index = -1;
  /// The other end.
  int64_t to_index = 0;

  /// If true, also puts the modules into training mode. If false, their mode does not change.
  bool set_modules_as_training = true;
};

/// A module of the model.
struct Layer {
  /// Index of the layer group that contains it: the position among the model's children, from 0.
  int64_t group;
  /// The dotted name, as in the state dict.
  std::string name;
  /// The module; never null.
  std::shared_ptr<torch::nn::Module> module;
  /// Whether any of its parameters is frozen.
  bool is_frozen;
};

/// Parameters by the index of their layer group.
using ParametersByGroup = std::map<int64_t, std::vector<at::Tensor>>;

/// Freezes and unfreezes parts of a model, for fine-tuning:
///
///     linkboy::ModelFreezer freezer(net);
///     freezer.freeze();  // all but the last layer group
///     auto optimizer =
///         std::make_shared<torch::optim::SGD>(freezer.get_trainable_parameters(), 0.1);
///     ...
///     for (const auto& [group, parameters] : freezer.unfreeze()) {
///       optimizer->add_param_group(torch::optim::OptimizerParamGroup(parameters));
///     }
///
/// The layer groups are the model's direct children, in order. A model without children is a single
/// group. Parameters that belong directly to the model (for example a class token) are in group 0.
/// A frozen parameter does not have a gradient. Optimizers therefore skip it, including its weight
/// decay and momentum.
///
/// Shares the model with the caller. Children of the model may be replaced between calls. Not
/// thread-safe. With several processes, make the same calls on each.
class LINKBOY_API ModelFreezer {
 public:
  /// @throws Error if the model is TorchScript.
  explicit ModelFreezer(Model model, ModelFreezerOptions options = {});

  /// Freezes a range of layer groups; does not change the others.
  /// @return The parameters that were not frozen before.
  /// @throws Error if an index is out of range; nothing has changed in this case.
  ParametersByGroup freeze(const FreezeOptions& options = {});

  /// Unfreezes a range of layer groups, including their batch norms; does not change the others.
  /// @return The parameters that were frozen before, for the optimizer.
  /// @throws Error if an index is out of range; nothing has changed in this case.
  ParametersByGroup unfreeze(const UnfreezeOptions& options = {});

  /// Puts the modules that were frozen with `set_modules_as_eval` back into evaluation mode, unless
  /// they were unfrozen with `set_modules_as_training` since. Call it after `train()` on the model,
  /// which puts all modules into training mode. Does not change the mode of the model itself,
  /// unless the model does not have children.
  void apply_modes();

  /// Returns the model's children in order, or the model itself if it does not have children.
  std::vector<Layer> get_layer_groups() const;
  /// Returns all modules without children, in order.
  std::vector<Layer> get_layers() const;

  /// Returns the parameters that are not frozen, each once, in the order of the model.
  std::vector<at::Tensor> get_trainable_parameters() const;

  /// Returns the frozen parameters of a range of layer groups.
  /// @throws Error if an index is out of range.
  std::vector<at::Tensor> get_frozen_parameters(int64_t from_index, int64_t to_index) const;

 private:
  using Modules = std::unordered_set<std::shared_ptr<torch::nn::Module>>;

  /// Returns the first and the last group of the range.
  std::pair<int64_t, int64_t> range_of(int64_t from_index, int64_t to_index) const;
  bool can_hold_in_eval(const torch::nn::Module& module) const;
  void set_modes(const Modules& to_train);

  std::shared_ptr<torch::nn::Module> module_;
  ModelFreezerOptions options_;
  Modules held_in_eval_;
};

}  // namespace linkboy
