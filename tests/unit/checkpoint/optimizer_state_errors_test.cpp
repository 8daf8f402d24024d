#include <gtest/gtest.h>
#include <torch/optim.h>
#include <torch/types.h>

#include <limits>
#include <string>

#include "checkpoint/optimizer_state.hpp"
#include "support/expect_error.hpp"
#include "unit/checkpoint/optimizer_with_state.hpp"

namespace linkboy::testing::optimizer_state_errors_test {
namespace {

namespace optim = torch::optim;

TEST(OptimizerStateTest, RefusesOptionsThatLibTorchLacks) {
  const auto refuses = [](optim::Optimizer& optimizer, const std::string& name,
                          const std::vector<std::string>& options) {
    const StateDict state = optimizer_state_dict(optimizer);
    for (const std::string& option : options) {
      EXPECT_ERROR(load_optimizer_state_dict(optimizer, with_group_value(state, option, true)),
                   c10::str("cannot load this state into a torch::optim::", name,
                            ": it was saved with ", option, "=True"));
    }
  };
  optim::AdamW adamw(make_params());
  refuses(adamw, "AdamW", {"maximize", "differentiable"});
  optim::RMSprop rmsprop(make_params());
  refuses(rmsprop, "RMSprop", {"capturable", "maximize", "differentiable"});
  optim::Adagrad adagrad(make_params());
  refuses(adagrad, "Adagrad", {"maximize", "differentiable"});
}

TEST(OptimizerStateTest, RefusesTheStateOfAnotherOptimizer) {
  optim::AdamW adamw(make_params());
  optim::Adam adam(make_params());
  optim::SGD sgd(make_params(), optim::SGDOptions(0.1));
  optim::RMSprop rmsprop(make_params());
  optim::Adagrad adagrad(make_params());
  optim::LBFGS plain_lbfgs(make_params());
  OwnRmsprop own(make_params());
  OwnLbfgs lbfgs(make_params());
  const auto refuses = [](optim::Optimizer& to, const optim::Optimizer& from,
                          const std::string& message) {
    EXPECT_ERROR(load_optimizer_state_dict(to, optimizer_state_dict(from)), message);
  };
  refuses(adam, adamw, "the state of AdamW");
  refuses(adamw, adam, "the state of Adam,");
  refuses(adamw, sgd, "no \"betas\", so it is the state of another optimizer");
  refuses(sgd, adam, "no \"dampening\", so it is the state of another optimizer");
  refuses(sgd, rmsprop, "no \"dampening\", so it is the state of another optimizer");
  refuses(rmsprop, sgd, "no \"alpha\", so it is the state of another optimizer");
  refuses(rmsprop, adagrad, "no \"alpha\", so it is the state of another optimizer");
  refuses(adagrad, rmsprop, "no \"lr_decay\", so it is the state of another optimizer");
  refuses(adagrad, adam, "no \"lr_decay\", so it is the state of another optimizer");
  refuses(plain_lbfgs, adam, "no \"history_size\", so it is the state of another optimizer");
  refuses(rmsprop, own, "the state of another optimizer");
  refuses(own, rmsprop, "the state of another optimizer");
  refuses(own, lbfgs, "it is the state of a linkboy::testing::OwnLbfgs");
}

template <typename OptimizerType, typename... Args>
void expect_refuses_other_params(Args... args) {
  OptimizerType saved(make_params(), args...);
  step(saved);
  const StateDict state = optimizer_state_dict(saved);

  OptimizerType fewer({make_params()[0]}, args...);
  EXPECT_ERROR(load_optimizer_state_dict(fewer, state), " 2 parameters; the optimizer");

  OptimizerType reshaped({torch::ones({2, 3}), torch::ones({5})}, args...);
  step(reshaped);
  reshaped.param_groups()[0].options().set_lr(7);
  const std::string before = bytes_of(reshaped);
  EXPECT_ERROR(load_optimizer_state_dict(reshaped, state), "[4]");
  EXPECT_EQ(bytes_of(reshaped), before);
  EXPECT_EQ(reshaped.param_groups()[0].options().get_lr(), 7);
}

TEST(OptimizerStateTest, RefusesOtherParametersAndChangesNothing) {
  expect_refuses_other_params<optim::AdamW>(optim::AdamWOptions(0.1));
  expect_refuses_other_params<optim::SGD>(optim::SGDOptions(0.1).momentum(0.9));
  expect_refuses_other_params<optim::Adagrad>(optim::AdagradOptions(0.1));
  expect_refuses_other_params<optim::RMSprop>(optim::RMSpropOptions(0.1));
  expect_refuses_other_params<OwnRmsprop>(optim::RMSpropOptions(0.1));
}

TEST(OptimizerStateTest, RefusesMalformedStates) {
  optim::AdamW adamw(make_params());
  step(adamw);
  const StateDict good = optimizer_state_dict(adamw);
  const auto refuses = [&](const std::string& key, const c10::IValue& value,
                           const std::string& message) {
    StateDict state = good;
    state.set(key, value);
    EXPECT_ERROR(load_optimizer_state_dict(adamw, state), message);
  };
  refuses("param_groups", 1, "\"param_groups\" is a Int");
  refuses("state", 1, "\"state\" is a Int");
  refuses("param_groups", c10::List<int64_t>(), "it has 0 parameter groups");
  refuses("param_groups", c10::List<int64_t>({1}), "param_groups[0] is a Int");
  const auto refuses_in_group = [&](const std::string& key, const c10::IValue& value,
                                    const std::string& message) {
    EXPECT_ERROR(load_optimizer_state_dict(adamw, with_group_value(good, key, value)), message);
  };
  refuses_in_group("betas", 0.9, "\"betas\" is a Double");
  refuses_in_group("betas", c10::List<double>({0.9}), "\"betas\" has 1 numbers");
  refuses_in_group("lr", "high", "\"lr\" is a String");
  refuses_in_group("lr", torch::ones({2}), "\"lr\" is a tensor without exactly one element");
  refuses_in_group("params", 3, "[\"params\"] is a Int");
  refuses_in_group("params", c10::List<int64_t>({0, 0}), "0 twice");
  refuses_in_group("params", c10::List<int64_t>({0, 9}), "\"state\" has an entry 1");
  refuses_in_group("params", c10::List<double>({0, 1}), "contains a Double");
  refuses_in_group("amsgrad", true, "no \"max_exp_avg_sq\"");
  EXPECT_EQ(adamw.state().size(), 2U);
}

TEST(OptimizerStateTest, RefusesMalformedStatesOfAdagradAndRmspropAndChangesNothing) {
  const auto refuses = [](optim::Optimizer& optimizer, const StateDict& state,
                          const std::string& message) {
    const std::string before = bytes_of(optimizer);
    EXPECT_ERROR(load_optimizer_state_dict(optimizer, state), message);
    EXPECT_EQ(bytes_of(optimizer), before);
  };
  const auto with = [](const StateDict& state, const std::string& key, const c10::IValue& value) {
    return with_param_value(state, 1, key, value);
  };
  constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

  optim::Adagrad adagrad(make_params());
  step(adagrad);
  StateDict good = with_group_value(optimizer_state_dict(adagrad), "lr", 0.5);
  refuses(adagrad, with(good, "step", -1), "\"step\" is -1; it must be at least 0");
  refuses(adagrad, with(good, "step", kNan), "\"step\" is nan");
  refuses(adagrad, with(good, "sum", 1), "\"sum\" is a Int");
  refuses(adagrad, with(good, "sum", torch::ones({1})), "\"sum\" is of shape [1]");
  refuses(adagrad, with_param_state(good, 1, {{"step", 1}}), "no \"sum\"");
  refuses(adagrad, with_param_state(good, 2, {}), "\"state\" has an entry 2");
  refuses(adagrad, with_group_value(good, "lr_decay", "low"), "\"lr_decay\" is a String");

  optim::RMSprop rmsprop(make_params());
  step(rmsprop);
  good = with_group_value(optimizer_state_dict(rmsprop), "lr", 0.5);
  refuses(rmsprop, with_group_value(good, "momentum", 0.9), "no \"momentum_buffer\"");
  refuses(rmsprop, with_group_value(good, "centered", true), "no \"grad_avg\"");
  refuses(rmsprop, with_group_value(good, "centered", 1), "\"centered\" is a Int");
  refuses(rmsprop, with(good, "square_avg", torch::ones({5})), "\"square_avg\" is of shape [5]");
  refuses(rmsprop, with(good, "momentum_buffer", torch::ones({2})),
          "\"momentum_buffer\" is of shape [2]");
  refuses(rmsprop, with(good, "grad_avg", torch::ones({2})), "\"grad_avg\" is of shape [2]");
  refuses(rmsprop, with(good, "step", "two"), "\"step\" is a String");
}

TEST(OptimizerStateTest, ADamagedArchiveRestoresTheOldState) {
  OwnRmsprop rmsprop(make_params());
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
}  // namespace linkboy::testing::optimizer_state_errors_test
