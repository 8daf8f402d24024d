// Reads and writes fields such as the learning rate in the options of each LibTorch optimizer.

#include "run/param_group_field.hpp"

#include <c10/util/Type.h>
#include <torch/optim/adagrad.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/rmsprop.h>
#include <torch/optim/sgd.h>

#include "linkboy/error.hpp"

namespace linkboy {
namespace {

using torch::optim::OptimizerOptions;

/// Calls `visit` with the options as their actual type. Returns false if their type is not in
/// `Known`.
template <class... Known, class Visit>
bool visit_options(OptimizerOptions& options, Visit visit) {
  auto visit_if = [&]<class Options>(Options* known) {
    if (known == nullptr) return false;
    visit(*known);
    return true;
  };
  return (visit_if(dynamic_cast<Known*>(&options)) || ...);
}

/// Reads `field` into `value`, or writes `*new_value` to it.
double access(OptimizerOptions& options, ParamGroupField field, const double* new_value) {
  if (field == ParamGroupField::lr) {
    if (new_value) options.set_lr(*new_value);
    return options.get_lr();
  }
  double result = 0.0;
  bool has_field = false;
  auto plain = [&](double& value) {
    if (new_value) value = *new_value;
    result = value;
    has_field = true;
  };
  visit_options<torch::optim::SGDOptions, torch::optim::AdamOptions, torch::optim::AdamWOptions,
                torch::optim::RMSpropOptions, torch::optim::AdagradOptions>(
      options, [&](auto& known) {
        if (field == ParamGroupField::weight_decay) {
          plain(known.weight_decay());
        } else if constexpr (requires { known.betas(); }) {
          if (field == ParamGroupField::momentum) {
            plain(std::get<0>(known.betas()));
          } else {
            plain(std::get<1>(known.betas()));
          }
        } else if constexpr (requires { known.momentum(); }) {
          if (field == ParamGroupField::momentum) plain(known.momentum());
        }
      });
  LINKBOY_CHECK(has_field, "the optimizer's options (", c10::demangle(typeid(options).name()),
                ") have no ", to_string(field), "; use another field or optimizer.");
  return result;
}

}  // namespace

std::vector<double> get_param_group_field(const torch::optim::Optimizer& optimizer,
                                          ParamGroupField field) {
  std::vector<double> values;
  for (const auto& group : optimizer.param_groups()) {
    values.push_back(access(const_cast<OptimizerOptions&>(group.options()), field, nullptr));
  }
  return values;
}

void set_param_group_field(OptimizerOptions& options, ParamGroupField field, double value) {
  access(options, field, &value);
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
