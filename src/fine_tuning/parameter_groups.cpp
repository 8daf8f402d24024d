// Sorts parameters into param groups by their weight decay and their learning rate.

#include "linkboy/fine_tuning/parameter_groups.hpp"

#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/instancenorm.h>
#include <torch/nn/modules/normalization.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <optional>
#include <string>
#include <utility>

#include "fine_tuning/layer_groups.hpp"
#include "linkboy/error.hpp"
#include "linkboy/scheduler.hpp"

namespace linkboy {
namespace {

using torch::nn::Module;
using torch::optim::OptimizerParamGroup;

template <class... Types>
bool is_any_of(const Module& module) {
  return ((dynamic_cast<const Types*>(&module) != nullptr) || ...);
}

bool is_norm(const Module& module) {
  using namespace torch::nn;
  return is_any_of<BatchNorm1dImpl, BatchNorm2dImpl, BatchNorm3dImpl, InstanceNorm1dImpl,
                   InstanceNorm2dImpl, InstanceNorm3dImpl, LayerNormImpl, GroupNormImpl>(module);
}

bool is_embedding(const Module& module) {
  return is_any_of<torch::nn::EmbeddingImpl, torch::nn::EmbeddingBagImpl>(module);
}

/// Whether the parameter's own name is that of a bias, as in LibTorch's modules.
bool is_bias(const std::string& name) {
  return name == "bias" || name.starts_with("bias_") || name.ends_with("_bias");
}

void check_number(const char* name, double value) {
  LINKBOY_CHECK_OPTION(std::isfinite(value) && value >= 0.0, name, " is ", value,
                       "; it must be finite and not negative.");
}

/// Whether a name in an option applies to the parameter `name`.
using Applies = bool (*)(const std::string& wanted, const std::string& name);

/// @param entries  Pairs, the first of which is a name.
template <class Entries>
void check_names(const char* option, const Entries& entries, Applies applies,
                 const std::vector<GroupedParameter>& parameters) {
  for (const auto& entry : entries) {
    const bool is_used = std::any_of(
        parameters.begin(), parameters.end(),
        [&](const GroupedParameter& parameter) { return applies(entry.first, parameter.name); });
    LINKBOY_CHECK_OPTION(
        is_used, option, " contains \"", entry.first,
        "\", which does not match any parameter of the model. Use a name from its state dict.");
  }
}

/// Returns the entry with the longest name that applies to a parameter; null if there is none.
template <class Entries>
const typename Entries::value_type* longest_match(const Entries& entries, Applies applies,
                                                  const std::string& parameter) {
  const typename Entries::value_type* longest = nullptr;
  for (const auto& entry : entries) {
    const bool is_longest = longest == nullptr || entry.first.size() > longest->first.size();
    if (is_longest && applies(entry.first, parameter)) longest = &entry;
  }
  return longest;
}

// Weight decay.

bool decays_together(const std::string& wanted, const std::string& name) {
  return name == wanted || (wanted.ends_with('.') && name.starts_with(wanted));
}

void check(const WeightDecayOptions& options, const std::vector<GroupedParameter>& parameters) {
  check_number("weight_decay", options.weight_decay);
  for (const auto& [name, value] : options.weight_decay_of) {
    check_number("an entry of weight_decay_of", value);
  }
  check_names("weight_decay_of", options.weight_decay_of, decays_together, parameters);
}

bool is_decayed(const WeightDecayOptions& options, const GroupedParameter& parameter) {
  if (is_norm(*parameter.module)) return options.decay_norms;
  if (is_embedding(*parameter.module)) return options.decay_embeddings;
  if (is_bias(parameter.own_name)) return options.decay_biases;
  return parameter.tensor.dim() > 1 || options.decay_one_dimensional;
}

double weight_decay_of(const WeightDecayOptions& options, const GroupedParameter& parameter) {
  const auto* named = longest_match(options.weight_decay_of, decays_together, parameter.name);
  if (named != nullptr) return named->second;
  return is_decayed(options, parameter) ? options.weight_decay : 0.0;
}

// Learning rates.

class LayerWiseLr {
 public:
  LayerWiseLr(const LayerWiseLrOptions& options, double default_lr,
              const std::vector<GroupedParameter>& parameters)
      : base_lr_(options.base_lr.value_or(default_lr)), decay_(options.decay) {
    check_number("base_lr", base_lr_);
    LINKBOY_CHECK_OPTION(options.decay > 0.0 && options.decay <= 1.0,
                         "the decay of learning rates is ", options.decay,
                         "; it must be above 0 and at most 1.");
    for (const auto& names : options.layers) {
      for (const std::string& name : names) layers_.emplace_back(name, num_layers_);
      ++num_layers_;
    }
    check_names("layers", layers_, is_in, parameters);
    if (num_layers_ > 0) return;
    for (const GroupedParameter& parameter : parameters) {
      if (groups_.emplace(parameter.group, num_layers_).second) ++num_layers_;
    }
  }

  double of(const GroupedParameter& parameter) const {
    return base_lr_ * std::pow(decay_, static_cast<double>(num_layers_ - 1 - layer_of(parameter)));
  }

 private:
  static bool is_in(const std::string& wanted, const std::string& name) {
    return name == wanted || name.starts_with(wanted + ".");
  }

  int64_t layer_of(const GroupedParameter& parameter) const {
    if (!groups_.empty()) return groups_.at(parameter.group);
    const auto* layer = longest_match(layers_, is_in, parameter.name);
    LINKBOY_CHECK_OPTION(
        layer != nullptr, "the parameter ", parameter.name,
        " is not in any of the layers; add its name, or that of a module that contains "
        "it, to one of them.");
    return layer->second;
  }

  double base_lr_;
  double decay_;
  int64_t num_layers_ = 0;
  std::vector<std::pair<std::string, int64_t>> layers_;
  std::map<int64_t, int64_t> groups_;  // without `layers`: the layers of the groups with parameters
};

}  // namespace

std::vector<OptimizerParamGroup> parameter_groups(const Model& model,
                                                  const torch::optim::OptimizerOptions& defaults,
                                                  const ParameterGroupOptions& options) {
  const auto parameters = grouped_parameters(require_layers(model));
  if (options.weight_decay) check(*options.weight_decay, parameters);
  std::optional<LayerWiseLr> lr;
  if (options.layer_wise_lr) lr.emplace(*options.layer_wise_lr, defaults.get_lr(), parameters);

  // The numbers of the groups by the fields in which they differ from the optimizer's options.
  std::map<std::pair<std::optional<double>, std::optional<double>>, std::size_t> numbers;
  std::vector<OptimizerParamGroup> groups;
  for (const GroupedParameter& parameter : parameters) {
    if (!parameter.tensor.requires_grad() && !options.include_frozen) continue;
    std::optional<double> own_lr, own_decay;
    if (lr) own_lr = lr->of(parameter);
    if (options.weight_decay) own_decay = weight_decay_of(*options.weight_decay, parameter);
    const auto [place, is_new] = numbers.try_emplace({own_lr, own_decay}, groups.size());
    if (is_new) {
      auto own = defaults.clone();
      if (own_lr) own->set_lr(*own_lr);
      if (own_decay) set_param_group_field(*own, ParamGroupField::weight_decay, *own_decay);
      groups.emplace_back(std::vector<at::Tensor>{}, std::move(own));
    }
    groups[place->second].params().push_back(parameter.tensor);
  }
  LINKBOY_CHECK(!groups.empty(),
                "the model does not have a trainable parameter; unfreeze some of its layers.");
  return groups;
}

std::vector<OptimizerParamGroup> weight_decay_groups(const Model& model,
                                                     const torch::optim::OptimizerOptions& defaults,
                                                     const WeightDecayOptions& options) {
  return parameter_groups(model, defaults, {.weight_decay = options});
}

std::vector<OptimizerParamGroup> layer_wise_lr_groups(
    const Model& model, const torch::optim::OptimizerOptions& defaults,
    const LayerWiseLrOptions& options) {
  return parameter_groups(model, defaults, {.layer_wise_lr = options});
}

}  // namespace linkboy
