// Sorts parameters into param groups by their weight decay and their learning rate.

#include "linkboy/fine_tuning/parameter_groups.hpp"

#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/instancenorm.h>
#include <torch/nn/modules/normalization.h>

#include <algorithm>
#include <cmath>
#include <set>
#include <unordered_set>

#include "fine_tuning/layer_groups.hpp"
#include "linkboy/error.hpp"
#include "run/param_group_field.hpp"

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

struct NamedParameter {
  /// The dotted name, and the name within its module.
  std::string name, own_name;
  const Module* module;
  int64_t group;
  at::Tensor tensor;
};

/// Returns all parameters, each once, including frozen ones.
std::vector<NamedParameter> named_parameters(const std::shared_ptr<Module>& root) {
  std::vector<NamedParameter> parameters;
  std::unordered_set<const at::TensorImpl*> seen;
  for (const GroupedModule& part : grouped_modules(root)) {
    for (const auto& item : part.module->named_parameters(/*recurse=*/false)) {
      if (!item.value().defined()) continue;
      if (!seen.insert(item.value().unsafeGetTensorImpl()).second) continue;
      parameters.push_back({joined_name(part.name, item.key()), item.key(), part.module.get(),
                            part.group, item.value()});
    }
  }
  return parameters;
}

void check_number(const char* name, double value) {
  LINKBOY_CHECK_OPTION(std::isfinite(value) && value >= 0.0, name, " is ", value,
                       "; it must be finite and not negative.");
}

void check_name(const char* option, const std::string& name, bool fits) {
  LINKBOY_CHECK_OPTION(
      fits, option, " contains \"", name,
      "\", which does not match any parameter of the model. Use a name from its state "
      "dict.");
}

// Weight decay.

class WeightDecay {
 public:
  WeightDecay(const WeightDecayOptions& options, const std::vector<NamedParameter>& parameters)
      : options_(options) {
    check_number("weight_decay", options.weight_decay);
    for (const auto& [name, value] : options.weight_decay_of) {
      check_number("an entry of weight_decay_of", value);
      check_name("weight_decay_of", name, fits_any(name, parameters));
    }
  }

  double of(const NamedParameter& parameter) const {
    const std::pair<const std::string, double>* longest = nullptr;
    for (const auto& entry : options_.weight_decay_of) {
      if (!fits(entry.first, parameter.name)) continue;
      if (longest == nullptr || entry.first.size() > longest->first.size()) longest = &entry;
    }
    if (longest != nullptr) return longest->second;
    return is_decayed(parameter) ? options_.weight_decay : 0.0;
  }

 private:
  static bool fits(const std::string& wanted, const std::string& name) {
    return name == wanted || (wanted.ends_with('.') && name.starts_with(wanted));
  }

  static bool fits_any(const std::string& wanted, const std::vector<NamedParameter>& parameters) {
    return std::any_of(
        parameters.begin(), parameters.end(),
        [&wanted](const NamedParameter& parameter) { return fits(wanted, parameter.name); });
  }

  bool is_decayed(const NamedParameter& parameter) const {
    if (is_norm(*parameter.module)) return options_.decay_norms;
    if (is_embedding(*parameter.module)) return options_.decay_embeddings;
    if (is_bias(parameter.own_name)) return options_.decay_biases;
    return parameter.tensor.dim() > 1 || options_.decay_one_dimensional;
  }

  const WeightDecayOptions& options_;
};

// Learning rates.

class LayerWiseLr {
 public:
  LayerWiseLr(const LayerWiseLrOptions& options, double default_lr,
              const std::vector<NamedParameter>& parameters)
      : options_(options), base_lr_(options.base_lr.value_or(default_lr)) {
    check_number("base_lr", base_lr_);
    LINKBOY_CHECK_OPTION(options.decay > 0.0 && options.decay <= 1.0,
                         "the decay of learning rates is ", options.decay,
                         "; it must be above 0 and at most 1.");
    std::set<std::string> unused;
    for (const auto& names : options.layers) unused.insert(names.begin(), names.end());
    for (const NamedParameter& parameter : parameters) {
      groups_.insert(parameter.group);
      for (const auto& names : options.layers) {
        for (const std::string& name : names) {
          if (fits(name, parameter.name)) unused.erase(name);
        }
      }
    }
    if (!unused.empty()) check_name("layers", *unused.begin(), false);
  }

  double of(const NamedParameter& parameter) const {
    const int64_t num_layers =
        static_cast<int64_t>(options_.layers.empty() ? groups_.size() : options_.layers.size());
    return base_lr_ *
           std::pow(options_.decay, static_cast<double>(num_layers - 1 - layer_of(parameter)));
  }

 private:
  static bool fits(const std::string& wanted, const std::string& name) {
    return name == wanted || name.starts_with(wanted + ".");
  }

  int64_t layer_of(const NamedParameter& parameter) const {
    if (options_.layers.empty()) {
      return std::distance(groups_.begin(), groups_.find(parameter.group));
    }
    std::optional<std::size_t> layer;
    std::size_t longest = 0;
    for (std::size_t i = 0; i < options_.layers.size(); ++i) {
      for (const std::string& name : options_.layers[i]) {
        if (!fits(name, parameter.name) || (layer && name.size() <= longest)) continue;
        layer = i;
        longest = name.size();
      }
    }
    LINKBOY_CHECK_OPTION(
        layer.has_value(), "the parameter ", parameter.name,
        " is not in any of the layers; add its name, or that of a module that contains "
        "it, to one of them.");
    return static_cast<int64_t>(*layer);
  }

  const LayerWiseLrOptions& options_;
  double base_lr_;
  std::set<int64_t> groups_;  // groups that have parameters
};

// Groups.

/// The fields in which a group differs from the optimizer's options.
struct GroupFields {
  std::optional<double> lr, weight_decay;

  bool operator==(const GroupFields&) const = default;

  std::unique_ptr<torch::optim::OptimizerOptions> laid_over(
      const torch::optim::OptimizerOptions& defaults) const {
    auto options = defaults.clone();
    if (lr) options->set_lr(*lr);
    if (weight_decay) {
      set_param_group_field(*options, ParamGroupField::weight_decay, *weight_decay);
    }
    return options;
  }
};

}  // namespace

std::vector<OptimizerParamGroup> parameter_groups(const Model& model,
                                                  const torch::optim::OptimizerOptions& defaults,
                                                  const ParameterGroupOptions& options) {
  const auto parameters = named_parameters(require_layers(model));
  std::optional<WeightDecay> weight_decay;
  if (options.weight_decay) weight_decay.emplace(*options.weight_decay, parameters);
  std::optional<LayerWiseLr> lr;
  if (options.layer_wise_lr) lr.emplace(*options.layer_wise_lr, defaults.get_lr(), parameters);

  std::vector<GroupFields> fields_of_groups;
  std::vector<OptimizerParamGroup> groups;
  for (const NamedParameter& parameter : parameters) {
    if (!parameter.tensor.requires_grad() && !options.include_frozen) continue;
    GroupFields fields;
    if (lr) fields.lr = lr->of(parameter);
    if (weight_decay) fields.weight_decay = weight_decay->of(parameter);
    const auto found = std::find(fields_of_groups.begin(), fields_of_groups.end(), fields);
    const auto index = static_cast<std::size_t>(found - fields_of_groups.begin());
    if (found == fields_of_groups.end()) {
      fields_of_groups.push_back(fields);
      groups.emplace_back(std::vector<at::Tensor>{}, fields.laid_over(defaults));
    }
    groups[index].params().push_back(parameter.tensor);
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
