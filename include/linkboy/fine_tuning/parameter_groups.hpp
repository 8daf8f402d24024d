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
  /// Not negative.
  double weight_decay = 0.01;

  /// Parameters of BatchNorm, InstanceNorm, LayerNorm and GroupNorm modules.
  bool decay_norms = false;
  /// Parameters called "bias", or with "bias_" in front or "_bias" behind.
  bool decay_biases = false;
  /// Parameters of Embedding and EmbeddingBag.
  bool decay_embeddings = true;
  /// Other parameters of at most one dimension: False is timm's rule, which also covers norms of
  /// types of their own.
  bool decay_one_dimensional = true;

  /// The weight decay of single parameters, by their name in the state dict, whatever is said
  /// above. A name that ends with '.' is for all that begin with it; the longest that fits counts.
  std::map<std::string, double> weight_decay_of{};
};

/// Learning rates that are smaller the farther a layer is from the output: that of the last layer
/// is `base_lr`, and of each one before it `decay` times that of the next.
struct LayerWiseLrOptions {
  /// Not negative. That of the optimizer's options, if not given.
  std::optional<double> base_lr{};

  /// Above 0, at most 1.
  double decay = 0.8;

  /// The layers, from the input to the output, each by the names of its modules or parameters:
  /// `{{"class_token", "embed"}, {"blocks.0"}, {"blocks.1"}, {"norm", "head"}}`. Where two names
  /// fit, the longer one counts. Empty: the layer groups of ModelFreezer that have parameters.
  std::vector<std::vector<std::string>> layers{};
};

struct ParameterGroupOptions {
  /// Empty: the weight decay of the optimizer's options for all.
  std::optional<WeightDecayOptions> weight_decay{};
  /// Empty: the learning rate of the optimizer's options for all.
  std::optional<LayerWiseLrOptions> layer_wise_lr{};

  /// Takes frozen parameters in as well. Optimizers pass them over while they are frozen, and when
  /// they are unfrozen (FreezeLayers) they have the weight decay and the learning rate of their
  /// own.
  bool include_frozen = false;
};

/// Param groups for an optimizer, one for each pair of learning rate and weight decay, in the order
/// of their first parameter in the model:
///
///     torch::optim::AdamWOptions defaults(1e-3);
///     torch::optim::AdamW optimizer(
///         linkboy::weight_decay_groups(net, defaults, {.weight_decay = 0.05}), defaults);
///
/// With LibTorch 2.15 leave the learning rate and the weight decay that groups differ in at their
/// class's default in the optimizer's options: what a group has of that default is replaced by
/// what the optimizer's options have.
///
/// Each parameter that is not frozen is in exactly one group; a shared one counts where it comes
/// first. If some are to be unfrozen later, set `include_frozen`; `Optimizer::add_param_group`
/// alone would give them all the weight decay and the learning rate of the optimizer's options.
///
/// @param defaults  The optimizer's options; each group gets a copy.
/// @throws Error if an option is out of its range, a name fits no parameter, a trainable parameter
///         is in none of `layers`, no parameter is taken in, the model is TorchScript, or the
///         options have no weight decay to set.
LINKBOY_API std::vector<torch::optim::OptimizerParamGroup> parameter_groups(
    const Model& model, const torch::optim::OptimizerOptions& defaults,
    const ParameterGroupOptions& options);

/// `parameter_groups` with weight decay alone.
LINKBOY_API std::vector<torch::optim::OptimizerParamGroup> weight_decay_groups(
    const Model& model, const torch::optim::OptimizerOptions& defaults,
    const WeightDecayOptions& options = {});

/// `parameter_groups` with learning rates alone.
LINKBOY_API std::vector<torch::optim::OptimizerParamGroup> layer_wise_lr_groups(
    const Model& model, const torch::optim::OptimizerOptions& defaults,
    const LayerWiseLrOptions& options = {});

}  // namespace linkboy
