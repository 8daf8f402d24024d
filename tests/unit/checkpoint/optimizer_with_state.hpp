// Helpers for tests of optimizers and their states.

#pragma once

#include <gtest/gtest.h>
#include <torch/optim.h>
#include <torch/types.h>

#include <memory>
#include <string>
#include <vector>

#include "checkpoint/optimizer_state.hpp"
#include "linkboy/checkpoint/checkpoint.hpp"
#include "support/file_contents.hpp"
#include "support/temporary_folder.hpp"

namespace linkboy::testing {

inline std::vector<at::Tensor> make_params() {
  torch::manual_seed(1);
  return {torch::rand({2, 3}).requires_grad_(), torch::rand({4}).requires_grad_()};
}

/// Returns an optimizer with one group per parameter.
template <typename OptimizerType, typename Options>
std::unique_ptr<OptimizerType> with_groups(const std::vector<at::Tensor>& params,
                                           const Options& first, const Options& second) {
  std::vector<torch::optim::OptimizerParamGroup> groups;
  groups.emplace_back(std::vector<at::Tensor>{params[0]}, std::make_unique<Options>(first));
  groups.emplace_back(std::vector<at::Tensor>{params[1]}, std::make_unique<Options>(second));
  auto optimizer = std::make_unique<OptimizerType>(groups, first);
  // LibTorch 2.15 replaces each option that equals its class's default by the one in `first`.
  optimizer->param_groups()[1].set_options(std::make_unique<Options>(second));
  return optimizer;
}

template <typename Options>
const Options& options_of(const torch::optim::Optimizer& optimizer, std::size_t group) {
  return static_cast<const Options&>(optimizer.param_groups()[group].options());
}

template <typename ParamState>
ParamState& state_of(torch::optim::Optimizer& optimizer, const at::Tensor& param) {
  return static_cast<ParamState&>(*optimizer.state().at(param.unsafeGetTensorImpl()));
}

/// A user's optimizer, which could have more state than its base class.
class OwnRmsprop : public torch::optim::RMSprop {
 public:
  using RMSprop::RMSprop;
};

/// An optimizer whose archive LibTorch cannot save after its first step.
class OwnLbfgs : public torch::optim::LBFGS {
 public:
  using LBFGS::LBFGS;
};

/// Makes a step of LBFGS on a quadratic function whose gradient at 0 is `slope`.
inline void step_on_quadratic(torch::optim::LBFGS& lbfgs, double slope = 1.0) {
  auto& params = lbfgs.param_groups()[0].params();
  lbfgs.step([&] {
    lbfgs.zero_grad();
    at::Tensor loss = torch::zeros({});
    for (const auto& param : params) {
      const auto factors = torch::arange(1, param.numel() + 1).reshape(param.sizes());
      loss = loss + (param.square() * factors + param * slope).sum();
    }
    loss.backward();
    return loss;
  });
}

inline void step(torch::optim::Optimizer& optimizer, float scale = 1) {
  for (auto& group : optimizer.param_groups()) {
    for (auto& param : group.params()) param.mutable_grad() = torch::full_like(param, 0.3F * scale);
  }
  optimizer.step();
}

inline StateDict param_state(const StateDict& state, int64_t index) {
  return StateDict::from_ivalue(state.at("state").toGenericDict().at(index), "state");
}

inline StateDict with_param_state(StateDict state, int64_t index, const StateDict& value) {
  auto states = state.at("state").toGenericDict().copy();
  states.insert_or_assign(index, value.to_ivalue());
  state.set("state", c10::IValue(states));
  return state;
}

inline StateDict with_param_value(const StateDict& state, int64_t index, const std::string& key,
                                  const c10::IValue& value) {
  StateDict param = param_state(state, index);
  param.set(key, value);
  return with_param_state(state, index, param);
}

/// Returns the bytes of the saved state. They are equal if and only if the states are equal.
inline std::string bytes_of(const torch::optim::Optimizer& optimizer) {
  const TemporaryFolder folder;
  write_checkpoint(folder / "x.pt", optimizer_state_dict(optimizer));
  return read_bytes(folder / "x.pt");
}

inline StateDict first_group(const StateDict& state) {
  return StateDict::from_ivalue(state.at("param_groups").toListRef()[0], "group");
}

inline StateDict with_group_value(StateDict state, const std::string& key,
                                  const c10::IValue& value) {
  StateDict group = first_group(state);
  group.set(key, value);
  c10::impl::GenericList groups(c10::AnyType::get());
  groups.push_back(group.to_ivalue());
  state.set("param_groups", c10::IValue(groups));
  return state;
}

}  // namespace linkboy::testing
