#include "checkpoint/optimizer_state.hpp"

#include <gtest/gtest.h>
#include <torch/optim.h>
#include <torch/types.h>

#include <memory>
#include <string>
#include <vector>

#include "linkboy/checkpoint/checkpoint.hpp"
#include "support/expect_error.hpp"
#include "support/temporary_folder.hpp"
#include "unit/checkpoint/optimizer_with_state.hpp"

namespace linkboy::testing::optimizer_state_test {
namespace {

namespace optim = torch::optim;

template <typename OptimizerType, typename Options>
OptimizerType with_groups(const std::vector<at::Tensor>& params, const Options& first,
                          const Options& second) {
  std::vector<optim::OptimizerParamGroup> groups;
  groups.emplace_back(std::vector<at::Tensor>{params[0]}, std::make_unique<Options>(first));
  groups.emplace_back(std::vector<at::Tensor>{params[1]}, std::make_unique<Options>(second));
  OptimizerType optimizer(groups, first);
  // LibTorch 2.15 replaces each option that equals its class's default by the one in `first`.
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

StateDict without_param_state(StateDict state, int64_t index) {
  auto states = state.at("state").toGenericDict().copy();
  EXPECT_EQ(states.erase(index), 1U);
  state.set("state", c10::IValue(states));
  return state;
}

// Checks that an optimizer that is restored from a file makes the same steps as the original.
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

// Does the same with one group per parameter. The second parameter has no gradient at first.
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

TEST(OptimizerStateTest, ResumesGroupsWithOtherOptionsAndParametersWithoutGradients) {
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

TEST(OptimizerStateTest, ResumesOptimizersThatHaveNoPythonLayout) {
  expect_resumes<OwnRmsprop>(optim::RMSpropOptions(0.1).momentum(0.5), optim::RMSpropOptions(1));
  EXPECT_TRUE(optimizer_state_dict(OwnRmsprop(make_params())).contains("libtorch_archive"));
  OwnLbfgs lbfgs(make_params());
  EXPECT_TRUE(optimizer_state_dict(lbfgs).contains("libtorch_archive"));
  step_on_quadratic(lbfgs);
  EXPECT_ERROR(optimizer_state_dict(lbfgs), "LibTorch cannot save the state of a ");
}

TEST(OptimizerStateTest, ResumesLbfgsWithItsHistory) {
  const TemporaryFolder folder;
  for (const bool searches : {false, true}) {
    auto options = optim::LBFGSOptions(0.2).max_iter(3).history_size(4);
    if (searches) options.line_search_fn("strong_wolfe");
    auto params = make_params();
    optim::LBFGS original(params, options);
    step_on_quadratic(original);
    step_on_quadratic(original, 2.0);
    write_checkpoint(folder / "x.pt", optimizer_state_dict(original));
    std::vector<at::Tensor> copies;
    for (const auto& param : params) copies.push_back(param.detach().clone().requires_grad_());
    optim::LBFGS resumed(copies, optim::LBFGSOptions(7));
    load_optimizer_state_dict(resumed, read_checkpoint(folder / "x.pt"));
    EXPECT_TRUE(static_cast<const optim::LBFGSOptions&>(resumed.param_groups()[0].options()) ==
                static_cast<const optim::LBFGSOptions&>(original.param_groups()[0].options()));
    EXPECT_EQ(bytes_of(resumed), bytes_of(original));
    for (auto* optimizer : {&original, &resumed}) {
      step_on_quadratic(*optimizer, 2.0);
      step_on_quadratic(*optimizer, -1.0);
    }
    for (std::size_t i = 0; i < params.size(); ++i) {
      EXPECT_TRUE(torch::equal(params[i], copies[i])) << params[i] << copies[i];
    }
  }
}

TEST(OptimizerStateTest, KeepsAnLbfgsWhoseFirstGradientIsZero) {
  const std::vector<at::Tensor> params{torch::zeros({2}).requires_grad_()};
  optim::LBFGS lbfgs(params);
  step_on_quadratic(lbfgs, 0.0);
  const StateDict state = optimizer_state_dict(lbfgs);
  EXPECT_EQ(keys(param_state(state, 0)), (std::vector<std::string>{"func_evals", "n_iter"}));
  load_optimizer_state_dict(lbfgs, state);
  step_on_quadratic(lbfgs);
  EXPECT_LT(params[0].min().item<double>(), 0.0);
}

TEST(OptimizerStateTest, RefusesADamagedHistoryOfLbfgs) {
  optim::LBFGS lbfgs(make_params(), optim::LBFGSOptions(0.2).max_iter(3));
  step_on_quadratic(lbfgs);
  const StateDict good = optimizer_state_dict(lbfgs);
  const auto with = [&](const char* key, const c10::IValue& value) {
    StateDict state = param_state(good, 0);
    state.set(key, value);
    return with_param_state(good, 0, state);
  };
  const c10::impl::GenericList none(c10::AnyType::get());
  EXPECT_ERROR(load_optimizer_state_dict(lbfgs, with("ro", none)), "have different lengths");
  EXPECT_ERROR(load_optimizer_state_dict(lbfgs, with("d", torch::zeros({3}))),
               "\"old_dirs\" has 10 numbers; it must have 3");
  EXPECT_ERROR(load_optimizer_state_dict(lbfgs, with("prev_flat_grad", torch::zeros({4}))),
               "\"prev_flat_grad\" has 4 numbers; it must have 10");
  EXPECT_ERROR(load_optimizer_state_dict(lbfgs, with("d", 1.0)), "it must be a tensor");
  load_optimizer_state_dict(lbfgs, with("H_diag", int64_t{1}));  // Python's initial value
}

TEST(OptimizerStateTest, RestartsAdagradForAParameterWithoutAnEntry) {
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

TEST(OptimizerStateTest, HasPythonsKeysInPythonsOrder) {
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

TEST(OptimizerStateTest, AcceptsEntriesThatPythonOmits) {
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

}  // namespace
}  // namespace linkboy::testing::optimizer_state_test
