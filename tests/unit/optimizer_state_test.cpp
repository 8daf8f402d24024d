#include "checkpoint/optimizer_state.hpp"

#include <gtest/gtest.h>
#include <torch/optim.h>
#include <torch/types.h>

#include <memory>
#include <string>
#include <vector>

#include "linkboy/checkpoint.hpp"
#include "support/expect_error.hpp"
#include "support/temporary_folder.hpp"

namespace linkboy {
namespace {

namespace optim = torch::optim;

std::vector<at::Tensor> make_params() {
  torch::manual_seed(1);
  return {torch::rand({2, 3}).requires_grad_(), torch::rand({4}).requires_grad_()};
}

void step(optim::Optimizer& optimizer, float scale = 1) {
  for (auto& group : optimizer.param_groups()) {
    for (auto& param : group.params()) param.mutable_grad() = torch::full_like(param, 0.3F * scale);
  }
  optimizer.step();
}

std::vector<std::string> keys(const StateDict& state) {
  std::vector<std::string> result;
  for (const auto& [key, value] : state.entries()) result.push_back(key);
  return result;
}

StateDict first_group(const StateDict& state) {
  return StateDict::from_ivalue(state.at("param_groups").toListRef()[0], "group");
}

StateDict with_group_value(StateDict state, const std::string& key, const c10::IValue& value) {
  StateDict group = first_group(state);
  group.set(key, value);
  c10::impl::GenericList groups(c10::AnyType::get());
  groups.push_back(group.to_ivalue());
  state.set("param_groups", c10::IValue(groups));
  return state;
}

// An optimizer goes on as if it had not been stopped, through a file.
template <typename OptimizerType, typename Options>
void expect_resumes(const Options& options, const Options& other_options) {
  const TemporaryFolder folder;
  auto params = make_params();
  OptimizerType original(params, options);
  step(original);
  step(original, 2);
  write_checkpoint(folder / "x.pt", optimizer_state_dict(original));

  std::vector<at::Tensor> copies;
  for (const auto& param : params) copies.push_back(param.detach().clone().requires_grad_());
  OptimizerType resumed(copies, other_options);
  load_optimizer_state_dict(resumed, read_checkpoint(folder / "x.pt"));
  for (auto* optimizer : {&original, &resumed}) {
    step(*optimizer, 3);
    step(*optimizer, -1);
  }
  for (std::size_t i = 0; i < params.size(); ++i) {
    EXPECT_TRUE(torch::equal(params[i], copies[i])) << params[i] << copies[i];
  }
}

TEST(OptimizerStateTest, ResumesSgd) {
  expect_resumes<optim::SGD>(optim::SGDOptions(0.1).momentum(0.9).nesterov(true).weight_decay(0.01),
                             optim::SGDOptions(1));
  expect_resumes<optim::SGD>(optim::SGDOptions(0.1), optim::SGDOptions(1));
}

TEST(OptimizerStateTest, ResumesAdam) {
  expect_resumes<optim::Adam>(optim::AdamOptions(0.1).betas({0.8, 0.95}).eps(1e-6),
                              optim::AdamOptions(1));
}

TEST(OptimizerStateTest, ResumesAdamW) {
  expect_resumes<optim::AdamW>(optim::AdamWOptions(0.1).weight_decay(0.2), optim::AdamWOptions(1));
  expect_resumes<optim::AdamW>(optim::AdamWOptions(0.1).amsgrad(true), optim::AdamWOptions(1));
}

TEST(OptimizerStateTest, ResumesOptimizersThatOnlyLibTorchLaysOut) {
  expect_resumes<optim::RMSprop>(optim::RMSpropOptions(0.1).momentum(0.5),
                                 optim::RMSpropOptions(1));
  expect_resumes<optim::Adagrad>(optim::AdagradOptions(0.1), optim::AdagradOptions(1));
}

TEST(OptimizerStateTest, HasThePythonKeysInOrder) {
  using Keys = std::vector<std::string>;
  optim::AdamW adamw(make_params());
  step(adamw);
  const StateDict state = optimizer_state_dict(adamw);
  EXPECT_EQ(keys(state), (Keys{"state", "param_groups"}));
  EXPECT_EQ(keys(first_group(state)),
            (Keys{"lr", "betas", "eps", "weight_decay", "amsgrad", "maximize", "foreach",
                  "capturable", "differentiable", "fused", "decoupled_weight_decay", "params"}));
  const auto second =
      StateDict::from_ivalue(state.at("state").toGenericDict().at(1), "state of parameter 1");
  EXPECT_EQ(keys(second), (Keys{"step", "exp_avg", "exp_avg_sq"}));
  EXPECT_EQ(second.get_tensor("step").scalar_type(), at::kFloat);
  EXPECT_EQ(second.get_tensor("step").dim(), 0);

  optim::SGD sgd(make_params(), optim::SGDOptions(0.1));
  EXPECT_EQ(keys(first_group(optimizer_state_dict(sgd))),
            (Keys{"lr", "momentum", "dampening", "weight_decay", "nesterov", "maximize", "foreach",
                  "differentiable", "fused", "params"}));
}

TEST(OptimizerStateTest, KeepsTheOptionsOfEachGroup) {
  const auto params = make_params();
  const auto make = [&params](double first, double second) {
    std::vector<optim::OptimizerParamGroup> groups;
    groups.emplace_back(std::vector<at::Tensor>{params[0]},
                        std::make_unique<optim::AdamWOptions>(first));
    groups.emplace_back(std::vector<at::Tensor>{params[1]},
                        std::make_unique<optim::AdamWOptions>(second));
    return optim::AdamW(groups);
  };
  const auto saved = make(0.1, 0.2);
  auto loaded = make(1, 1);
  load_optimizer_state_dict(loaded, optimizer_state_dict(saved));
  EXPECT_EQ(loaded.param_groups()[0].options().get_lr(), 0.1);
  EXPECT_EQ(loaded.param_groups()[1].options().get_lr(), 0.2);
}

TEST(OptimizerStateTest, ConvertsToTheDtypeOfTheParameterAndDoesNotShare) {
  optim::SGD saved({make_params()[1]}, optim::SGDOptions(0.1).momentum(0.9));
  step(saved);
  const StateDict state = optimizer_state_dict(saved);
  const at::Tensor param = torch::rand({4}, at::kDouble);
  optim::SGD loaded({param}, optim::SGDOptions(0.1));
  load_optimizer_state_dict(loaded, state);
  const auto& buffer =
      static_cast<optim::SGDParamState&>(*loaded.state().at(param.unsafeGetTensorImpl()))
          .momentum_buffer();
  EXPECT_EQ(buffer.scalar_type(), at::kDouble);
  buffer.zero_();
  step(saved);
  EXPECT_NE(optimizer_state_dict(saved).at("state").toGenericDict().size(), 0U);
}

TEST(OptimizerStateTest, AcceptsWhatPythonLeavesOut) {
  optim::SGD sgd(make_params(), optim::SGDOptions(0.1).momentum(0.9));
  StateDict state = optimizer_state_dict(sgd);
  c10::impl::GenericDict states(c10::AnyType::get(), c10::AnyType::get());
  states.insert(0, StateDict{{"momentum_buffer", c10::IValue()}}.to_ivalue());
  state.set("state", c10::IValue(states));
  state = with_group_value(state, "lr", torch::tensor(0.25));
  state = with_group_value(state, "initial_lr", 0.5);
  load_optimizer_state_dict(sgd, state);
  EXPECT_TRUE(sgd.state().empty());
  EXPECT_EQ(sgd.param_groups()[0].options().get_lr(), 0.25);
  step(sgd);
}

TEST(OptimizerStateTest, RefusesOptionsThatLibTorchLacks) {
  optim::AdamW adamw(make_params());
  const StateDict state = optimizer_state_dict(adamw);
  EXPECT_ERROR(
      load_optimizer_state_dict(adamw, with_group_value(state, "maximize", true)),
      "cannot load this state into a torch::optim::AdamW: it was saved with maximize=True");
  EXPECT_ERROR(load_optimizer_state_dict(adamw, with_group_value(state, "differentiable", true)),
               "differentiable=True");
}

TEST(OptimizerStateTest, RefusesTheStateOfAnotherOptimizer) {
  optim::AdamW adamw(make_params());
  optim::Adam adam(make_params());
  optim::SGD sgd(make_params(), optim::SGDOptions(0.1));
  optim::RMSprop rmsprop(make_params());
  optim::Adagrad adagrad(make_params());
  EXPECT_ERROR(load_optimizer_state_dict(adam, optimizer_state_dict(adamw)), "the state of AdamW");
  EXPECT_ERROR(load_optimizer_state_dict(adamw, optimizer_state_dict(adam)), "the state of Adam,");
  EXPECT_ERROR(load_optimizer_state_dict(adamw, optimizer_state_dict(sgd)), "no \"betas\"");
  EXPECT_ERROR(load_optimizer_state_dict(sgd, optimizer_state_dict(adam)), "no \"momentum\"");
  EXPECT_ERROR(load_optimizer_state_dict(sgd, optimizer_state_dict(rmsprop)),
               "another optimizer's");
  EXPECT_ERROR(load_optimizer_state_dict(rmsprop, optimizer_state_dict(sgd)),
               "another optimizer's");
  EXPECT_ERROR(load_optimizer_state_dict(rmsprop, optimizer_state_dict(adagrad)),
               "it is the state of a torch::optim::Adagrad");
}

template <typename OptimizerType, typename... Args>
void expect_refuses_other_params(Args... args) {
  OptimizerType saved(make_params(), args...);
  step(saved);
  const StateDict state = optimizer_state_dict(saved);

  OptimizerType fewer({make_params()[0]}, args...);
  EXPECT_ERROR(load_optimizer_state_dict(fewer, state), " 2 parameters; the optimizer");

  const at::Tensor param = torch::ones({2, 3});
  OptimizerType reshaped({param, torch::ones({5})}, args...);
  step(reshaped);
  reshaped.param_groups()[0].options().set_lr(7);
  const at::Tensor before = param.clone();
  EXPECT_ERROR(load_optimizer_state_dict(reshaped, state), "[4]");
  EXPECT_EQ(reshaped.state().size(), 2U);
  EXPECT_EQ(reshaped.param_groups()[0].options().get_lr(), 7);
}

TEST(OptimizerStateTest, RefusesOtherParametersAndChangesNothing) {
  expect_refuses_other_params<optim::AdamW>(optim::AdamWOptions(0.1));
  expect_refuses_other_params<optim::SGD>(optim::SGDOptions(0.1).momentum(0.9));
  expect_refuses_other_params<optim::RMSprop>(optim::RMSpropOptions(0.1));
}

TEST(OptimizerStateTest, RefusesMalformedStates) {
  optim::AdamW adamw(make_params());
  step(adamw);
  const StateDict good = optimizer_state_dict(adamw);
  const auto refuses = [&](const StateDict& state, const std::string& message) {
    EXPECT_ERROR(load_optimizer_state_dict(adamw, state), message);
  };
  const auto with = [&good](const std::string& key, const c10::IValue& value) {
    StateDict state = good;
    state.set(key, value);
    return state;
  };
  refuses(with("param_groups", 1), "\"param_groups\" is a Int");
  refuses(with("state", 1), "\"state\" is a Int");
  refuses(with("param_groups", c10::List<int64_t>()), "it has 0 parameter groups");
  refuses(with("param_groups", c10::List<int64_t>({1})), "param_groups[0] is a Int");
  refuses(with_group_value(good, "betas", 0.9), "\"betas\" is a Double");
  refuses(with_group_value(good, "betas", c10::List<double>({0.9})), "\"betas\" has 1 numbers");
  refuses(with_group_value(good, "lr", "high"), "\"lr\" is a String");
  refuses(with_group_value(good, "lr", torch::ones({2})), "\"lr\" is a tensor of another size");
  refuses(with_group_value(good, "params", 3), "[\"params\"] is a Int");
  refuses(with_group_value(good, "params", c10::List<int64_t>({0, 0})), "0 a second time");
  refuses(with_group_value(good, "params", c10::List<int64_t>({0, 9})), "\"state\" has an entry 1");
  refuses(with_group_value(good, "params", c10::List<double>({0, 1})), "holds a Double");
  refuses(with_group_value(good, "amsgrad", true), "no \"max_exp_avg_sq\"");
  EXPECT_EQ(adamw.state().size(), 2U);
}

TEST(OptimizerStateTest, PutsTheOldStateBackWhenAnArchiveIsDamaged) {
  optim::RMSprop rmsprop(make_params());
  step(rmsprop);
  StateDict state = optimizer_state_dict(rmsprop);
  rmsprop.param_groups()[0].options().set_lr(7);
  state.set("libtorch_archive", torch::zeros({100}, at::kByte));
  EXPECT_ERROR(load_optimizer_state_dict(rmsprop, state), "\"libtorch_archive\" is damaged");
  state.set("libtorch_archive", torch::zeros({100}));
  EXPECT_ERROR(load_optimizer_state_dict(rmsprop, state), "is not a tensor of bytes");
  state.set("param_shapes", 1);
  EXPECT_ERROR(load_optimizer_state_dict(rmsprop, state), "\"param_shapes\" is a Int");
  EXPECT_EQ(rmsprop.param_groups()[0].options().get_lr(), 7);
  EXPECT_EQ(rmsprop.state().size(), 2U);
}

}  // namespace
}  // namespace linkboy
