#pragma once

#include <torch/optim/optimizer.h>

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "linkboy/export.hpp"
#include "linkboy/model.hpp"

namespace linkboy {

/// Which parameters get weight decay, and how much.
struct WeightDecayOptions {
  /// The weight decay of all parameters that the options below do not exempt. Must not be negative.
  double weight_decay = 0.01;

  /// Whether the parameters of BatchNorm, InstanceNorm, LayerNorm and GroupNorm modules decay.
  bool decay_norms = false;
  /// Whether biases decay: parameters whose name is "bias", begins with "bias_" or ends with
  /// "_bias".
  bool decay_biases = false;
  /// Whether the parameters of Embedding and EmbeddingBag modules decay.
  bool decay_embeddings = true;
  /// Whether other parameters of at most one dimension decay. False is timm's rule, which also
  /// covers custom norm modules.
  bool decay_one_dimensional = true;

  /// The weight decay of individual parameters, by their names in the state dict. These values
  /// override the options above. A name that ends with '.' applies to all parameters whose names
  /// begin with it. If several names match, the longest one is used.
  std::map<std::string, double> weight_decay_of{};
};

/// Learning rates that decrease with the distance of a layer from the output. The last layer has
/// `base_lr`, and each earlier layer has `decay` times the rate of the next one.
struct LayerWiseLrOptions {
  /// The learning rate of the last layer. Must not be negative. If not set, the learning rate of
  /// the optimizer's options is used.
  std::optional<double> base_lr{};

  /// The factor from one layer to the layer before it. Must be in (0, 1].
  double decay = 0.8;

  /// The layers, from the input to the output, each given by the names of its modules or
  /// parameters: `{{"class_token", "embed"}, {"blocks.0"}, {"blocks.1"}, {"norm", "head"}}`. If
  /// several names match, the longest one is used. If empty, the layers are the layer groups of
  /// ModelFreezer that have parameters.
  std::vector<std::vector<std::string>> layers{};
};

struct ParameterGroupOptions {
  /// If not set, all parameters have the weight decay of the optimizer's options.
  std::optional<WeightDecayOptions> weight_decay{};
  /// If not set, all parameters have the learning rate of the optimizer's options.
  std::optional<LayerWiseLrOptions> layer_wise_lr{};

  /// If true, the groups also contain frozen parameters. Optimizers skip them while they are
  /// frozen. When they are unfrozen (FreezeLayers), they use the weight decay and learning rate of
  /// their group.
  bool include_frozen = false;
};

/// Returns param groups for an optimizer, one for each combination of learning rate and weight
/// decay, in the order of their first parameter in the model:
///
///     torch::optim::AdamWOptions defaults(1e-3);
///     torch::optim::AdamW optimizer(
///         linkboy::weight_decay_groups(net, defaults, {.weight_decay = 0.05}), defaults);
///
/// With LibTorch 2.15, leave the learning rate and the weight decay in the optimizer's options at
/// their class defaults if the groups differ in them. Otherwise, a group whose value equals the
/// class default gets the value of the optimizer's options instead.
///
/// Each parameter that is not frozen is in exactly one group. A shared parameter is assigned by its
/// first occurrence in the model. If you want to unfreeze parameters later, set `include_frozen`:
/// with `Optimizer::add_param_group` alone, all of them would get the weight decay and the learning
/// rate of the optimizer's options.
///
/// @param defaults  The optimizer's options; each group gets a copy.
/// @throws OptionError if an option is out of range, if a name does not match any parameter, or if
///         a trainable parameter is not in any of `layers`; Error if no parameter remains, if the
///         model is TorchScript, or if the optimizer's options do not have a weight decay to set.
[[nodiscard]] LINKBOY_API std::vector<torch::optim::OptimizerParamGroup> parameter_groups(
    const Model& model, const torch::optim::OptimizerOptions& defaults,
    const ParameterGroupOptions& options);

/// Returns `parameter_groups` with only `weight_decay` set.
[[nodiscard]] LINKBOY_API std::vector<torch::optim::OptimizerParamGroup> weight_decay_groups(
    const Model& model, const torch::optim::OptimizerOptions& defaults,
    const WeightDecayOptions& options = {});

/// Returns `parameter_groups` with only `layer_wise_lr` set.
[[nodiscard]] LINKBOY_API std::vector<torch::optim::OptimizerParamGroup> layer_wise_lr_groups(
    const Model& model, const torch::optim::OptimizerOptions& defaults,
    const LayerWiseLrOptions& options = {});

}  // namespace linkboy
