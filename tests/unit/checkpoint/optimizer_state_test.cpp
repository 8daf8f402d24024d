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

StateDict through_file(const StateDict& state) {
  const TemporaryFolder folder;
  write_checkpoint(folder / "x.pt", state);
  return read_checkpoint(folder / "x.pt");
}

std::vector<at::Tensor> trainable_copies_of(const std::vector<at::Tensor>& params) {
  std::vector<at::Tensor> copies;
  for (const auto& param : params) copies.push_back(param.detach().clone().requires_grad_());
  return copies;
}

void expect_equal(const std::vector<at::Tensor>& found, const std::vector<at::Tensor>& expected) {
  for (std::size_t i = 0; i < expected.size(); ++i) {
    EXPECT_TRUE(torch::equal(found[i], expected[i])) << found[i] << expected[i];
  }
}

// Checks that an optimizer that is restored from a file makes the same steps as the original.
template <typename OptimizerType, typename Options>
void expect_resumes(const Options& options) {
  SCOPED_TRACE(c10::demangle(typeid(OptimizerType).name()));
  const auto params = make_params();
  OptimizerType original(params, options);
  step(original);
  step(original, 2);
  const StateDict state = through_file(optimizer_state_dict(original));

  const auto copies = trainable_copies_of(params);
  OptimizerType resumed(copies, Options(1));
  load_optimizer_state_dict(resumed, state);
  for (auto* optimizer : {&original, &resumed}) {
    step(*optimizer, 3);
    step(*optimizer, -1);
  }
  expect_equal(copies, params);
}

// Does the same with one group per parameter. The second parameter has no gradient at first.
template <typename OptimizerType, typename Options>
void expect_resumes_groups(const Options& first, const Options& second) {
  const auto params = make_params();
  const auto original = with_groups<OptimizerType>(params, first, second);
  params[0].mutable_grad() = torch::full_like(params[0], 0.5);
  original->step();
  original->step();
  const StateDict state = optimizer_state_dict(*original);

  const auto copies = trainable_copies_of(params);
  const auto resumed = with_groups<OptimizerType>(copies, Options(7), Options(8));
  step(*resumed);
  for (std::size_t i = 0; i < params.size(); ++i) copies[i].detach().copy_(params[i].detach());
  EXPECT_NE(bytes_of(*original), bytes_of(*resumed));
  load_optimizer_state_dict(*resumed, state);
  EXPECT_EQ(resumed->state().size(), original->state().size());
  for (auto* optimizer : {original.get(), resumed.get()}) {
    EXPECT_TRUE(options_of<Options>(*optimizer, 0) == first);
    EXPECT_TRUE(options_of<Options>(*optimizer, 1) == second);
    step(*optimizer, 3);
    step(*optimizer, -1);
  }
  expect_equal(copies, params);
  EXPECT_EQ(bytes_of(*original), bytes_of(*resumed));
}

TEST(OptimizerStateTest, ResumesEachOptimizerThatPythonAlsoHas) {
  using Sgd = optim::SGDOptions;
  expect_resumes<optim::SGD>(Sgd(0.1).momentum(0.9).nesterov(true).weight_decay(0.01));
  expect_resumes<optim::SGD>(Sgd(0.1));
  expect_resumes<optim::Adam>(optim::AdamOptions(0.1).betas({0.8, 0.95}).eps(1e-6));
  expect_resumes<optim::AdamW>(optim::AdamWOptions(0.1).weight_decay(0.2));
  expect_resumes<optim::AdamW>(optim::AdamWOptions(0.1).amsgrad(true));
  expect_resumes<optim::Adagrad>(
      optim::AdagradOptions(0.1).lr_decay(0.2).initial_accumulator_value(0.3).weight_decay(0.01));
  using Rmsprop = optim::RMSpropOptions;
  expect_resumes<optim::RMSprop>(Rmsprop(0.1).alpha(0.8).eps(1e-6));
  expect_resumes<optim::RMSprop>(Rmsprop(0.1).momentum(0.5).weight_decay(0.01));
  expect_resumes<optim::RMSprop>(Rmsprop(0.1).centered(true));
  expect_resumes<optim::RMSprop>(Rmsprop(0.1).momentum(0.5).centered(true));
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
  expect_resumes<OwnRmsprop>(optim::RMSpropOptions(0.1).momentum(0.5));
  EXPECT_TRUE(optimizer_state_dict(OwnRmsprop(make_params())).contains("libtorch_archive"));
  OwnLbfgs lbfgs(make_params());
  EXPECT_TRUE(optimizer_state_dict(lbfgs).contains("libtorch_archive"));
  step_on_quadratic(lbfgs);
  EXPECT_ERROR(optimizer_state_dict(lbfgs), "LibTorch cannot save the state of a ");
}

TEST(OptimizerStateTest, ResumesLbfgsWithItsHistory) {
  for (const bool searches : {false, true}) {
    auto options = optim::LBFGSOptions(0.2).max_iter(3).history_size(4);
    if (searches) options.line_search_fn("strong_wolfe");
    const auto params = make_params();
    optim::LBFGS original(params, options);
    step_on_quadratic(original);
    step_on_quadratic(original, 2.0);
    const auto copies = trainable_copies_of(params);
    optim::LBFGS resumed(copies, optim::LBFGSOptions(7));
    load_optimizer_state_dict(resumed, through_file(optimizer_state_dict(original)));
    EXPECT_TRUE(options_of<optim::LBFGSOptions>(resumed, 0) ==
                options_of<optim::LBFGSOptions>(original, 0));
    EXPECT_EQ(bytes_of(resumed), bytes_of(original));
    for (auto* optimizer : {&original, &resumed}) {
      step_on_quadratic(*optimizer, 2.0);
      step_on_quadratic(*optimizer, -1.0);
    }
    expect_equal(copies, params);
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
  const auto load_with = [&](const char* key, const c10::IValue& value) {
    load_optimizer_state_dict(lbfgs, with_param_value(good, 0, key, value));
  };
  EXPECT_ERROR(load_with("ro", c10::impl::GenericList(c10::AnyType::get())),
               "have different lengths");
  EXPECT_ERROR(load_with("d", torch::zeros({3})), "\"old_dirs\" has 10 numbers; it must have 3");
  EXPECT_ERROR(load_with("prev_flat_grad", torch::zeros({4})),
               "\"prev_flat_grad\" has 4 numbers; it must have 10");
  EXPECT_ERROR(load_with("d", 1.0), "it must be a tensor");
  load_with("H_diag", int64_t{1});  // Python's initial value
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
  EXPECT_EQ(keys(optimizer_state_dict(adamw)), (Keys{"state", "param_groups"}));
  const auto check = [](optim::Optimizer& optimizer, const Keys& of_group, const Keys& of_param) {
    SCOPED_TRACE(c10::str(of_group));
    EXPECT_EQ(keys(first_group(optimizer_state_dict(optimizer))), of_group);
    step(optimizer);
    const StateDict param = param_state(optimizer_state_dict(optimizer), 1);
    EXPECT_EQ(keys(param), of_param);
    if (!param.contains("step")) return;
    EXPECT_EQ(param.get_tensor("step").scalar_type(), at::kFloat);
    EXPECT_EQ(param.get_tensor("step").dim(), 0);
  };
  check(adamw,
        Keys({"lr", "betas", "eps", "weight_decay", "amsgrad", "maximize", "foreach", "capturable",
              "differentiable", "fused", "decoupled_weight_decay", "params"}),
        {"step", "exp_avg", "exp_avg_sq"});
  optim::SGD sgd(make_params(), optim::SGDOptions(0.1).momentum(0.9));
  check(sgd,
        Keys({"lr", "momentum", "dampening", "weight_decay", "nesterov", "maximize", "foreach",
              "differentiable", "fused", "params"}),
        {"momentum_buffer"});
  optim::Adagrad adagrad(make_params());
  check(adagrad,
        Keys({"lr", "lr_decay", "eps", "weight_decay", "initial_accumulator_value", "foreach",
              "maximize", "differentiable", "fused", "params"}),
        {"step", "sum"});
  const Keys of_rmsprop({"lr", "momentum", "alpha", "eps", "centered", "weight_decay", "capturable",
                         "foreach", "maximize", "differentiable", "params"});
  optim::RMSprop rmsprop(make_params());
  check(rmsprop, of_rmsprop, {"step", "square_avg"});
  optim::RMSprop centred(make_params(), optim::RMSpropOptions().momentum(0.5).centered(true));
  check(centred, of_rmsprop, {"step", "square_avg", "momentum_buffer", "grad_avg"});
}

TEST(OptimizerStateTest, ConvertsToTheDtypeOfTheParameterAndDoesNotShare) {
  optim::SGD saved({make_params()[1]}, optim::SGDOptions(0.1).momentum(0.9));
  step(saved);
  const StateDict state = optimizer_state_dict(saved);
  const at::Tensor param = torch::rand({4}, at::kDouble);
  optim::SGD loaded({param}, optim::SGDOptions(0.1));
  load_optimizer_state_dict(loaded, state);
  const auto& buffer = state_of<optim::SGDParamState>(loaded, param).momentum_buffer();
  EXPECT_EQ(buffer.scalar_type(), at::kDouble);
  buffer.zero_();
  EXPECT_NE(param_state(state, 0).get_tensor("momentum_buffer").sum().item<float>(), 0.0F);
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
