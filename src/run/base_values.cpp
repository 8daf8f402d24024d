// Keeps the values from which schedules start, also in the saved state of the optimizer.

#include "run/base_values.hpp"

#include <torch/optim/optimizer.h>

#include <algorithm>
#include <utility>

#include "checkpoint/python_optimizer_formats.hpp"

namespace linkboy {
namespace {

using python_optimizer_formats::number;

constexpr ParamGroupField kFields[] = {ParamGroupField::lr, ParamGroupField::weight_decay,
                                       ParamGroupField::momentum, ParamGroupField::beta2};

constexpr const char* kParamGroups = "param_groups";

std::string key_of(ParamGroupField field) { return "initial_" + to_string(field); }

}  // namespace

void BaseValues::drop_changed(const torch::optim::Optimizer& optimizer) {
  for (auto& [field, values] : values_) {
    const std::vector<double> now = get_param_group_field(optimizer, field);
    values.resize(now.size());
    for (std::size_t i = 0; i < now.size(); ++i) {
      if (values[i] && values[i]->last != now[i]) values[i].reset();
    }
  }
}

void BaseValues::keep(const Scheduler& scheduler, const torch::optim::Optimizer& optimizer) {
  drop_changed(optimizer);
  for (const auto& [field, last] : scheduler.last_values()) {
    const std::vector<double> now = get_param_group_field(optimizer, field);
    const std::vector<double>& base = scheduler.base_values(field);
    auto& values = values_[field];
    values.resize(now.size());
    for (std::size_t i = 0; i < std::min(base.size(), now.size()); ++i) {
      if (now[i] == last[i]) values[i] = Value{.base = base[i], .last = last[i]};
    }
  }
}

void BaseValues::set_base(torch::optim::Optimizer& optimizer) {
  drop_changed(optimizer);
  exchange(optimizer, true);
}

void BaseValues::exchange(torch::optim::Optimizer& optimizer, bool to_base) const {
  for (const auto& [field, values] : values_) {
    std::vector<double> now = get_param_group_field(optimizer, field);
    for (std::size_t i = 0; i < std::min(values.size(), now.size()); ++i) {
      if (!values[i]) continue;
      const auto [from, to] = to_base ? std::pair(values[i]->last, values[i]->base)
                                      : std::pair(values[i]->base, values[i]->last);
      if (now[i] == from) now[i] = to;
    }
    set_param_group_field(optimizer, field, now);
  }
}

void BaseValues::add_to(StateDict& optimizer_state, const torch::optim::Optimizer& optimizer) {
  drop_changed(optimizer);
  if (values_.empty()) return;
  std::vector<c10::IValue> groups(optimizer.param_groups().size(), StateDict().to_ivalue());
  if (optimizer_state.contains(kParamGroups)) groups = optimizer_state.get_list(kParamGroups).vec();
  c10::impl::GenericList list(c10::AnyType::get());
  for (std::size_t i = 0; i < groups.size(); ++i) {
    StateDict group = StateDict::from_ivalue(groups[i], kParamGroups);
    for (const auto& [field, values] : values_) {
      if (i < values.size() && values[i]) group.set(key_of(field), values[i]->base);
    }
    list.push_back(group.to_ivalue());
  }
  optimizer_state.set(kParamGroups, list);
}

void BaseValues::load(const StateDict& optimizer_state, const torch::optim::Optimizer& optimizer) {
  values_.clear();
  if (!optimizer_state.contains(kParamGroups)) return;
  const auto groups = optimizer_state.get_list(kParamGroups);
  for (std::size_t i = 0; i < groups.size(); ++i) {
    const StateDict group = StateDict::from_ivalue(groups[i], kParamGroups);
    for (const ParamGroupField field : kFields) {
      if (!group.contains(key_of(field))) continue;
      auto& values = values_[field];
      values.resize(groups.size());
      values[i] = Value{.base = number(group, key_of(field)),
                        .last = get_param_group_field(optimizer, field).at(i)};
    }
  }
}

}  // namespace linkboy
