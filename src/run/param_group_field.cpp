// Reads and writes fields such as the learning rate in the options of each LibTorch optimizer.

#include <c10/util/Type.h>
#include <torch/optim/adagrad.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/optimizer.h>
#include <torch/optim/rmsprop.h>
#include <torch/optim/sgd.h>

#include <tuple>
#include <typeinfo>

#include "linkboy/error.hpp"
#include "linkboy/scheduler.hpp"

namespace linkboy {
namespace {

using torch::optim::OptimizerOptions;

/// Returns the field; null if the options are not `Options` or do not have it.
template <class Options>
double* field_if(OptimizerOptions& options, ParamGroupField field) {
  auto* known = dynamic_cast<Options*>(&options);
  if (known == nullptr) return nullptr;
  if (field == ParamGroupField::weight_decay) return &known->weight_decay();
  const bool is_momentum = field == ParamGroupField::momentum;
  if constexpr (requires { known->betas(); }) {
    return is_momentum ? &std::get<0>(known->betas()) : &std::get<1>(known->betas());
  } else if constexpr (requires { known->momentum(); }) {
    return is_momentum ? &known->momentum() : nullptr;
  }
  return nullptr;
}

template <class... Known>
double& field_of(OptimizerOptions& options, ParamGroupField field) {
  double* found = nullptr;
  ((found = found != nullptr ? found : field_if<Known>(options, field)), ...);
  LINKBOY_CHECK(found != nullptr, "the optimizer's options (",
                c10::demangle(typeid(options).name()), ") have no ", to_string(field),
                "; use another field or optimizer.");
  return *found;
}

/// Any field other than the learning rate.
double& other_field(OptimizerOptions& options, ParamGroupField field) {
  return field_of<torch::optim::SGDOptions, torch::optim::AdamOptions, torch::optim::AdamWOptions,
                  torch::optim::RMSpropOptions, torch::optim::AdagradOptions>(options, field);
}

}  // namespace

std::vector<double> get_param_group_field(const torch::optim::Optimizer& optimizer,
                                          ParamGroupField field) {
  std::vector<double> values;
  for (const auto& group : optimizer.param_groups()) {
    auto& options = const_cast<OptimizerOptions&>(group.options());
    values.push_back(field == ParamGroupField::lr ? options.get_lr() : other_field(options, field));
  }
  return values;
}

void set_param_group_field(OptimizerOptions& options, ParamGroupField field, double value) {
  if (field == ParamGroupField::lr) {
    options.set_lr(value);
  } else {
    other_field(options, field) = value;
  }
}

void set_param_group_field(torch::optim::Optimizer& optimizer, ParamGroupField field,
                           const std::vector<double>& values) {
  auto& groups = optimizer.param_groups();
  LINKBOY_CHECK(values.size() == groups.size(), "there are ", values.size(), " values of ",
                to_string(field), " for ", groups.size(), " param groups; pass one per group.");
  for (std::size_t i = 0; i < groups.size(); ++i) {
    set_param_group_field(groups[i].options(), field, values[i]);
  }
}

}  // namespace linkboy
