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
  /// False leaves the parameters and the mode of BatchNorm1d, 2d and 3d layers alone when the rest
  /// is frozen: their statistics follow the new data.
  bool freeze_batch_norms = false;

  /// Whether the constructor unfreezes all parameters, so that all that is frozen later is known.
  bool unfreeze_all = true;
};

/// Indexes of layer groups count from 0, or back from -1, the last group. Both ends belong to the
/// range, and may come in either order.
struct FreezeOptions {
  /// One end of the range.
  int64_t from_index = 0;
  /// The other end.
  int64_t to_index = -2;

  /// Also puts the modules into evaluation mode (dropout off, running statistics fixed), in which
  /// `apply_modes` keeps them.
  bool set_modules_as_eval = false;

  LINKBOY_FIELDS(from_index, to_index, set_modules_as_eval);
};

/// See FreezeOptions.
struct UnfreezeOptions {
  /// One end of the range.
  int64_t from_index = -1;
  /// The other end.
  int64_t to_index = 0;

  /// Also puts the modules into training mode. False leaves their mode as it is.
  bool set_modules_as_training = true;
};

/// A direct child of the model.
struct LayerGroup {
  /// Its place among the model's children, from 0.
  int64_t index;
  /// The child's name.
  std::string name;
  /// Never null.
  std::shared_ptr<torch::nn::Module> module;
  /// Whether any of its parameters is.
  bool is_frozen;
};

/// A module without children.
struct Layer {
  /// Index of the layer group that holds it.
  int64_t group_index;
  /// Dotted, as in the state dict.
  std::string name;
  /// Never null.
  std::shared_ptr<torch::nn::Module> module;
  /// Whether any of its parameters is.
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
/// The layer groups are the model's direct children, in their order; of a model without children,
/// itself. Parameters of the model's own (a class token, say) belong to group 0. A frozen parameter
/// has no gradient, so that optimizers pass it over, weight decay and momentum included.
///
/// Shares the model with the caller. The model may get other children in between. Not thread-safe;
/// of several processes, each does the same.
class LINKBOY_API ModelFreezer {
 public:
  /// @throws Error if the model is TorchScript.
  explicit ModelFreezer(Model model, ModelFreezerOptions options = {});

  /// Freezes the layer groups of a range; leaves all others as they are.
  /// @return The parameters that were not frozen before.
  /// @throws Error if an index is out of range; nothing has changed then.
  ParametersByGroup freeze(const FreezeOptions& options = {});

  /// Unfreezes the layer groups of a range, batch norms included; leaves all others as they are.
  /// @return The parameters that were frozen before, for the optimizer.
  /// @throws Error as `freeze`.
  ParametersByGroup unfreeze(const UnfreezeOptions& options = {});

  /// Puts what was frozen with `set_modules_as_eval`, and not unfrozen with
  /// `set_modules_as_training` since, into evaluation mode again: a train() of the whole model has
  /// put it into training mode. The model itself stays in its own mode, unless it has no children.
  void apply_modes();

  /// Returns the model's children in order, or the model itself if it does not have children.
  std::vector<LayerGroup> get_layer_groups() const;
  /// All layers, in order.
  std::vector<Layer> get_layers() const;

  /// Those that are not frozen, each once, in the order of the model.
  std::vector<at::Tensor> get_trainable_parameters() const;

  /// Returns the frozen parameters of a range of layer groups.
  /// @throws Error if an index is out of range.
  std::vector<at::Tensor> get_frozen_parameters(int64_t from_index, int64_t to_index) const;

 private:
  using Modules = std::unordered_set<std::shared_ptr<torch::nn::Module>>;

  /// First and last group.
  std::pair<int64_t, int64_t> range_of(int64_t from_index, int64_t to_index) const;
  bool can_hold_in_eval(const torch::nn::Module& module) const;
  void set_modes(const Modules& to_train);

  std::shared_ptr<torch::nn::Module> module_;
  ModelFreezerOptions options_;
  Modules held_in_eval_;
};

}  // namespace linkboy
