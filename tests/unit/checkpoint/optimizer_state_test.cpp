#include "checkpoint/optimizer_state.hpp"

#include <gtest/gtest.h>
#include <torch/optim.h>
#include <torch/types.h>

#include <fstream>
#include <iterator>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "linkboy/checkpoint/checkpoint.hpp"
#include "support/expect_error.hpp"
#include "support/temporary_folder.hpp"

namespace linkboy::optimizer_state_test {
namespace {

namespace optim = torch::optim;

std::vector<at::Tensor> make_params() {
  torch::manual_seed(1);
  return {torch::rand({2, 3}).requires_grad_(), torch::rand({4}).requires_grad_()};
}

// A user's own: it might hold more than its base does.
class OwnRmsprop : public optim::RMSprop {
 public:
  using RMSprop::RMSprop;
};

void step(optim::Optimizer& optimizer, float scale = 1) {
  for (auto& group : optimizer.param_groups()) {
    for (auto& param : group.params()) param.mutable_grad() = torch::full_like(param, 0.3F * scale);
  }
  optimizer.step();
}

template <typename OptimizerType, typename Options>
OptimizerType with_groups(const std::vector<at::Tensor>& params, const Options& first,
                          const Options& second) {
  std::vector<optim::OptimizerParamGroup> groups;
  groups.emplace_back(std::vector<at::Tensor>{params[0]}, std::make_unique<Options>(first));
  groups.emplace_back(std::vector<at::Tensor>{params[1]}, std::make_unique<Options>(second));
  OptimizerType optimizer(groups, first);
  // LibTorch 2.15 replaces what is its class's default by what `first` has.
  optimizer.param_groups()[1].set_options(std::make_unique<Options>(second));
  return optimizer;
}

template <typename ParamState>
const ParamState& state_of(const optim::Optimizer& optimizer, const at::Tensor& param) {
  return static_cast<const ParamState&>(*optimizer.state().at(param.unsafeGetTensorImpl()));
}

std::vector<std::string> keys(const StateDict& state) {
  std::vector<std::string> result;
  for (const auto& [key, value] : state.entries()) result.push_back(key);
  return result;
}

StateDict param_state(const StateDict& state, int64_t index) {
  return StateDict::from_ivalue(state.at("state").toGenericDict().at(index), "state");
}

StateDict with_param_state(StateDict state, int64_t index, const StateDict& value) {
  auto states = state.at("state").toGenericDict().copy();
  states.insert_or_assign(index, value.to_ivalue());
  state.set("state", c10::IValue(states));
  return state;
}

StateDict without_param_state(StateDict state, int64_t index) {
  auto states = state.at("state").toGenericDict().copy();
  EXPECT_EQ(states.erase(index), 1U);
  state.set("state", c10::IValue(states));
  return state;
}

// Equal if and only if the states are.
std::string bytes_of(const optim::Optimizer& optimizer) {
  const TemporaryFolder folder;
  write_checkpoint(folder / "x.pt", optimizer_state_dict(optimizer));
  std::ifstream file(folder / "x.pt", std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
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

// Likewise with a group for each parameter, of which the second has no gradient at first.
template <typename OptimizerType, typename Options>
void expect_resumes_groups(const Options& first, const Options& second) {
  auto params = make_params();
  auto original = with_groups<OptimizerType>(params, first, second);
  params[0].mutable_grad() = torch::full_like(params[0], 0.5);
  original.step();
  original.step();
  const StateDict state = optimizer_state_dict(original);

  std::vector<at::Tensor> copies;
  for (const auto& param : params) copies.push_back(param.detach().clone().requires_grad_());
  auto resumed = with_groups<OptimizerType>(copies, Options(7), Options(8));
  step(resumed);
  for (std::size_t i = 0; i < params.size(); ++i) copies[i].detach().copy_(params[i].detach());
  EXPECT_NE(bytes_of(original), bytes_of(resumed));
  load_optimizer_state_dict(resumed, state);
  EXPECT_EQ(resumed.state().size(), original.state().size());
  for (auto* optimizer : {&original, &resumed}) {
    EXPECT_TRUE(static_cast<Options&>(optimizer->param_groups()[0].options()) == first);
    EXPECT_TRUE(static_cast<Options&>(optimizer->param_groups()[1].options()) == second);
    step(*optimizer, 3);
    step(*optimizer, -1);
  }
  for (std::size_t i = 0; i < params.size(); ++i) {
    EXPECT_TRUE(torch::equal(params[i], copies[i])) << params[i] << copies[i];
  }
  EXPECT_EQ(bytes_of(original), bytes_of(resumed));
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

TEST(OptimizerStateTest, ResumesAdagrad) {
  expect_resumes<optim::Adagrad>(
      optim::AdagradOptions(0.1).lr_decay(0.2).initial_accumulator_value(0.3).weight_decay(0.01),
      optim::AdagradOptions(1));
}

TEST(OptimizerStateTest, ResumesRmsprop) {
  using Options = optim::RMSpropOptions;
  expect_resumes<optim::RMSprop>(Options(0.1).alpha(0.8).eps(1e-6), Options(1));
  expect_resumes<optim::RMSprop>(Options(0.1).momentum(0.5).weight_decay(0.01), Options(1));
  expect_resumes<optim::RMSprop>(Options(0.1).centered(true), Options(1));
  expect_resumes<optim::RMSprop>(Options(0.1).momentum(0.5).centered(true), Options(1));
}

TEST(OptimizerStateTest, ResumesGroupsOfOtherOptionsAndParametersThatHadNoGradient) {
  using Adagrad = optim::AdagradOptions;
  expect_resumes_groups<optim::Adagrad>(
      Adagrad(0.1).lr_decay(0.2).eps(1e-6),
      Adagrad(0.2).weight_decay(0.01).initial_accumulator_value(0.5));
  using Rmsprop = optim::RMSpropOptions;
  expect_resumes_groups<optim::RMSprop>(Rmsprop(0.1).momentum(0.5),
                                        Rmsprop(0.2).centered(true).alpha(0.9));
  expect_resumes_groups<optim::RMSprop>(Rmsprop(0.1).centered(true).eps(1e-6),
                                        Rmsprop(0.2).momentum(0.5).weight_decay(0.01));
}

TEST(OptimizerStateTest, ResumesOptimizersThatOnlyLibTorchLaysOut) {
  expect_resumes<OwnRmsprop>(optim::RMSpropOptions(0.1).momentum(0.5), optim::RMSpropOptions(1));
  EXPECT_TRUE(optimizer_state_dict(OwnRmsprop(make_params())).contains("libtorch_archive"));
  optim::LBFGS lbfgs(make_params());
  EXPECT_TRUE(optimizer_state_dict(lbfgs).contains("libtorch_archive"));
  lbfgs.step([&] {
    auto loss = lbfgs.param_groups()[0].params()[0].square().sum();
    loss.backward();
    return loss;
  });
  EXPECT_ERROR(optimizer_state_dict(lbfgs),
               "LibTorch cannot save the state of a torch::optim::LBFGS");
}

TEST(OptimizerStateTest, StartsAdagradAnewForAParameterWithoutAnEntry) {
  const auto params = make_params();
  optim::Adagrad adagrad(params, optim::AdagradOptions(0.1).initial_accumulator_value(0.5));
  step(adagrad);
  const StateDict good = optimizer_state_dict(adagrad);
  for (const StateDict& state : {without_param_state(good, 1), with_param_state(good, 1, {})}) {
    load_optimizer_state_dict(adagrad, state);
    EXPECT_EQ(state_of<optim::AdagradParamState>(adagrad, params[0]).step(), 1);
    const auto& second = state_of<optim::AdagradParamState>(adagrad, params[1]);
    EXPECT_EQ(second.step(), 0);
    EXPECT_TRUE(torch::equal(second.sum(), torch::full({4}, 0.5)));
    step(adagrad);
    EXPECT_EQ(state_of<optim::AdagradParamState>(adagrad, params[1]).step(), 1);
  }
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
  const StateDict second = param_state(state, 1);
  EXPECT_EQ(keys(second), (Keys{"step", "exp_avg", "exp_avg_sq"}));
  EXPECT_EQ(second.get_tensor("step").scalar_type(), at::kFloat);
  EXPECT_EQ(second.get_tensor("step").dim(), 0);

  optim::SGD sgd(make_params(), optim::SGDOptions(0.1));
  EXPECT_EQ(keys(first_group(optimizer_state_dict(sgd))),
            (Keys{"lr", "momentum", "dampening", "weight_decay", "nesterov", "maximize", "foreach",
                  "differentiable", "fused", "params"}));

  optim::Adagrad adagrad(make_params());
  EXPECT_EQ(keys(first_group(optimizer_state_dict(adagrad))),
            (Keys{"lr", "lr_decay", "eps", "weight_decay", "initial_accumulator_value", "foreach",
                  "maximize", "differentiable", "fused", "params"}));
  const StateDict adagrad_state = param_state(optimizer_state_dict(adagrad), 1);
  EXPECT_EQ(keys(adagrad_state), (Keys{"step", "sum"}));
  EXPECT_EQ(adagrad_state.get_tensor("step").scalar_type(), at::kFloat);

  const auto rmsprop_keys = [](const optim::RMSpropOptions& options) {
    optim::RMSprop rmsprop(make_params(), options);
    step(rmsprop);
    const StateDict all = optimizer_state_dict(rmsprop);
    EXPECT_EQ(keys(first_group(all)),
              (Keys{"lr", "momentum", "alpha", "eps", "centered", "weight_decay", "capturable",
                    "foreach", "maximize", "differentiable", "params"}));
    EXPECT_EQ(param_state(all, 1).get_tensor("step").scalar_type(), at::kFloat);
    return keys(param_state(all, 1));
  };
  EXPECT_EQ(rmsprop_keys({}), (Keys{"step", "square_avg"}));
  EXPECT_EQ(rmsprop_keys(optim::RMSpropOptions().momentum(0.5).centered(true)),
            (Keys{"step", "square_avg", "momentum_buffer", "grad_avg"}));
}

TEST(OptimizerStateTest, KeepsTheOptionsOfEachGroup) {
  using Options = optim::AdamWOptions;
  const auto params = make_params();
  const auto saved = with_groups<optim::AdamW>(params, Options(0.1), Options(0.2));
  auto loaded = with_groups<optim::AdamW>(params, Options(1), Options(1));
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

  optim::RMSprop rmsprop(make_params());
  const StateDict rmsprop_state = optimizer_state_dict(rmsprop);
  for (const auto* option : {"capturable", "maximize", "differentiable"}) {
    EXPECT_ERROR(load_optimizer_state_dict(rmsprop, with_group_value(rmsprop_state, option, true)),
                 c10::str("into a torch::optim::RMSprop: it was saved with ", option, "=True"));
  }
  optim::Adagrad adagrad(make_params());
  const StateDict adagrad_state = optimizer_state_dict(adagrad);
  for (const auto* option : {"maximize", "differentiable"}) {
    EXPECT_ERROR(load_optimizer_state_dict(adagrad, with_group_value(adagrad_state, option, true)),
                 c10::str("into a torch::optim::Adagrad: it was saved with ", option, "=True"));
  }
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
  EXPECT_ERROR(load_optimizer_state_dict(sgd, optimizer_state_dict(rmsprop)), "no \"dampening\"");
  EXPECT_ERROR(load_optimizer_state_dict(rmsprop, optimizer_state_dict(sgd)), "no \"alpha\"");
  EXPECT_ERROR(load_optimizer_state_dict(rmsprop, optimizer_state_dict(adagrad)),
               "no \"momentum\"");
  EXPECT_ERROR(load_optimizer_state_dict(adagrad, optimizer_state_dict(rmsprop)),
               "no \"lr_decay\"");
  EXPECT_ERROR(load_optimizer_state_dict(adagrad, optimizer_state_dict(adam)), "no \"lr_decay\"");

  OwnRmsprop own(make_params());
  optim::LBFGS lbfgs(make_params());
  EXPECT_ERROR(load_optimizer_state_dict(rmsprop, optimizer_state_dict(own)),
               "another optimizer's");
  EXPECT_ERROR(load_optimizer_state_dict(own, optimizer_state_dict(rmsprop)),
               "another optimizer's");
  EXPECT_ERROR(load_optimizer_state_dict(own, optimizer_state_dict(lbfgs)),
               "it is the state of a torch::optim::LBFGS");
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

TEST(OptimizerStateTest, RefusesMalformedStatesOfAdagradAndRmspropAndChangesNothing) {
  const auto refuses = [](optim::Optimizer& optimizer, const StateDict& state,
                          const std::string& message) {
    const std::string before = bytes_of(optimizer);
    EXPECT_ERROR(load_optimizer_state_dict(optimizer, state), message);
    EXPECT_EQ(bytes_of(optimizer), before);
  };
  const auto with = [](const StateDict& state, const std::string& key, const c10::IValue& value) {
    StateDict second = param_state(state, 1);
    second.set(key, value);
    return with_param_state(state, 1, second);
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

TEST(OptimizerStateTest, PutsTheOldStateBackWhenAnArchiveIsDamaged) {
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
}  // namespace linkboy::optimizer_state_test
