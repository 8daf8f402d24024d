#include "linkboy/run/optimizers.hpp"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "support/expect_error.hpp"

namespace linkboy::testing::optimizers_test {
namespace {

using namespace torch::optim;

/// Expects that the function creates an optimizer with these options.
template <class Options>
void expect_options(const CreateOptimizerFn& create, const Options& expected) {
  const auto optimizer = create({torch::zeros({2}).requires_grad_()});
  const auto& options = optimizer->param_groups().front().options();
  EXPECT_TRUE(static_cast<const Options&>(options) == expected) << typeid(Options).name();
}

// The exception is the learning rate of SGD: LibTorch has no default, and Python's is 0.001.
TEST(OptimizersTest, DefaultsEqualLibTorch) {
  expect_options(make_optimizer_fn("sgd"), SGDOptions(1e-3));
  expect_options(make_optimizer_fn("adam"), AdamOptions());
  expect_options(make_optimizer_fn("adamw"), AdamWOptions());
  expect_options(make_optimizer_fn("adagrad"), AdagradOptions());
  expect_options(make_optimizer_fn("rmsprop"), RMSpropOptions());
  expect_options(make_optimizer_fn("lbfgs"), LBFGSOptions().max_eval(25));
  EXPECT_EQ(optimizer_names().size(), 6U);
}

TEST(OptimizersTest, EveryOptionReachesTheOptimizer) {
  expect_options(sgd({.lr = 0.5, .momentum = 0.9, .weight_decay = 0.1, .nesterov = true}),
                 SGDOptions(0.5).momentum(0.9).weight_decay(0.1).nesterov(true));
  expect_options(sgd({.momentum = 0.9, .dampening = 0.5}),
                 SGDOptions(1e-3).momentum(0.9).dampening(0.5));
  expect_options(
      adam({.lr = 0.5, .betas = {0.8, 0.9}, .eps = 1e-6, .weight_decay = 0.1, .amsgrad = true}),
      AdamOptions(0.5).betas({0.8, 0.9}).eps(1e-6).weight_decay(0.1).amsgrad(true));
  expect_options(
      adamw({.lr = 0.5, .betas = {0.8, 0.9}, .eps = 1e-6, .weight_decay = 0.1, .amsgrad = true}),
      AdamWOptions(0.5).betas({0.8, 0.9}).eps(1e-6).weight_decay(0.1).amsgrad(true));
  expect_options(
      adagrad({.lr = 0.5,
               .lr_decay = 0.25,
               .weight_decay = 0.1,
               .initial_accumulator_value = 0.75,
               .eps = 1e-6}),
      AdagradOptions(0.5).lr_decay(0.25).weight_decay(0.1).initial_accumulator_value(0.75).eps(
          1e-6));
  RMSpropOptions expected(0.5);
  expected.eps(1e-6).weight_decay(0.1).alpha(0.9).momentum(0.5).centered(true);
  expect_options(rmsprop({.lr = 0.5,
                          .alpha = 0.9,
                          .eps = 1e-6,
                          .weight_decay = 0.1,
                          .momentum = 0.5,
                          .centered = true}),
                 expected);
  LBFGSOptions searching(0.5);
  searching.max_iter(3).max_eval(4).tolerance_grad(0.1).tolerance_change(0.2).history_size(5);
  expect_options(lbfgs({.lr = 0.5,
                        .max_iter = 3,
                        .max_eval = 4,
                        .tolerance_grad = 0.1,
                        .tolerance_change = 0.2,
                        .history_size = 5,
                        .line_search_fn = LbfgsOptimizerOptions::LineSearch::strong_wolfe}),
                 searching.line_search_fn("strong_wolfe"));
}

TEST(OptimizersTest, AreMadeByNameFromText) {
  expect_options(make_optimizer_fn("adamw", {{"lr", "0.5"}, {"betas", "0.8,0.9"}}),
                 AdamWOptions(0.5).betas({0.8, 0.9}));
  expect_options(make_optimizer_fn("sgd", {{"momentum", "0.9"}, {"nesterov", "true"}}),
                 SGDOptions(1e-3).momentum(0.9).nesterov(true));
}

TEST(OptimizersTest, ErrorsListTheAllowedNames) {
  EXPECT_THROW(make_optimizer_fn("sgdm"), OptionError);
  EXPECT_ERROR(make_optimizer_fn("sgdm"), "there is no optimizer \"sgdm\"; there are sgd, adam");
  EXPECT_ERROR(make_optimizer_fn("sgd", {{"rate", "1"}}), "lr, momentum, dampening");
  EXPECT_ERROR(adam({.betas = {0.9}}), "betas are 1 numbers; there must be two");
}

TEST(OptimizersTest, ErrorsShowTheAllowedValues) {
  const char* not_negative = "; it must be a finite number of at least 0.";
  for (const std::string& name : optimizer_names()) {
    for (const char* value : {"-1", "nan", "inf"}) {
      const auto message = "the optimizer's lr is " + std::string(value) + not_negative;
      EXPECT_ERROR_AS(OptionError, make_optimizer_fn(name, {{"lr", value}}), message);
      if (name == "lbfgs") continue;
      EXPECT_ERROR(make_optimizer_fn(name, {{"weight_decay", value}}), "weight_decay is ");
    }
  }
  EXPECT_ERROR(sgd({.momentum = -1.0}), "momentum is -1");
  EXPECT_ERROR(adagrad({.lr_decay = -1.0}), "lr_decay is -1");
  EXPECT_ERROR(adagrad({.initial_accumulator_value = -1.0}), "value is -1");
  EXPECT_ERROR(rmsprop({.eps = -1.0}), "eps is -1");
  EXPECT_ERROR(rmsprop({.alpha = -1.0}), "alpha is -1");
  EXPECT_ERROR(rmsprop({.momentum = -1.0}), "momentum is -1");
  EXPECT_ERROR(lbfgs({.tolerance_grad = -1.0}), "tolerance_grad is -1");
  EXPECT_ERROR(lbfgs({.tolerance_change = -1.0}), "tolerance_change is -1");
  EXPECT_ERROR(lbfgs({.max_iter = 0}), "max_iter is 0; it must be at least 1.");
  EXPECT_ERROR(lbfgs({.max_eval = -3}), "max_eval is -3");
  EXPECT_ERROR(lbfgs({.history_size = 0}), "history_size is 0");
  EXPECT_ERROR(make_optimizer_fn("lbfgs", {{"line_search_fn", "wolfe"}}), "one of strong_wolfe");
  for (const char* betas : {"0.9,1", "-0.1,0.9", "0.9,nan"}) {
    EXPECT_ERROR(make_optimizer_fn("adam", {{"betas", betas}}), "each must be in [0, 1)");
  }
}

}  // namespace
}  // namespace linkboy::testing::optimizers_test
