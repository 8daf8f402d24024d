#include "linkboy/run/optimizer_factory.hpp"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "support/expect_error.hpp"

namespace linkboy::testing::optimizer_factory_test {
namespace {

using namespace torch::optim;

/// Expects that the optimizer with these settings has these options.
template <class Options>
void expect_options(const std::string& name, const TextSettings& settings,
                    const Options& expected) {
  const auto optimizer = make_optimizer_fn(name, settings)({torch::zeros({2}).requires_grad_()});
  const auto& options = optimizer->param_groups().front().options();
  EXPECT_TRUE(static_cast<const Options&>(options) == expected)
      << name << " with " << ::testing::PrintToString(settings);
}

// The exception is the learning rate of SGD: LibTorch has no default, and Python's is 0.001.
TEST(OptimizerFactoryTest, DefaultsEqualLibTorch) {
  expect_options("sgd", {}, SGDOptions(1e-3));
  expect_options("adam", {}, AdamOptions());
  expect_options("adamw", {}, AdamWOptions());
  expect_options("adagrad", {}, AdagradOptions());
  expect_options("rmsprop", {}, RMSpropOptions());
  EXPECT_EQ(optimizer_names().size(), 5U);
}

TEST(OptimizerFactoryTest, EveryOptionReachesTheOptimizer) {
  expect_options(
      "sgd", {{"lr", "0.5"}, {"momentum", "0.9"}, {"weight_decay", "0.1"}, {"nesterov", "true"}},
      SGDOptions(0.5).momentum(0.9).weight_decay(0.1).nesterov(true));
  expect_options("sgd", {{"momentum", "0.9"}, {"dampening", "0.5"}},
                 SGDOptions(1e-3).momentum(0.9).dampening(0.5));
  const TextSettings common{{"lr", "0.5"}, {"eps", "1e-6"}, {"weight_decay", "0.1"}};
  const auto with = [&](TextSettings settings) {
    settings.insert(settings.end(), common.begin(), common.end());
    return settings;
  };
  const TextSettings adam = with({{"betas", "0.8,0.9"}, {"amsgrad", "true"}});
  expect_options("adam", adam,
                 AdamOptions(0.5).betas({0.8, 0.9}).eps(1e-6).weight_decay(0.1).amsgrad(true));
  expect_options("adamw", adam,
                 AdamWOptions(0.5).betas({0.8, 0.9}).eps(1e-6).weight_decay(0.1).amsgrad(true));
  expect_options(
      "adagrad", with({{"lr_decay", "0.25"}, {"initial_accumulator_value", "0.75"}}),
      AdagradOptions(0.5).eps(1e-6).weight_decay(0.1).lr_decay(0.25).initial_accumulator_value(
          0.75));
  RMSpropOptions rmsprop(0.5);
  rmsprop.eps(1e-6).weight_decay(0.1).alpha(0.9).momentum(0.5).centered(true);
  expect_options("rmsprop", with({{"alpha", "0.9"}, {"momentum", "0.5"}, {"centered", "true"}}),
                 rmsprop);
}

TEST(OptimizerFactoryTest, ErrorsListTheAllowedNames) {
  EXPECT_THROW((void)make_optimizer_fn("sgdm"), OptionError);
  EXPECT_ERROR(make_optimizer_fn("sgdm"), "there is no optimizer \"sgdm\"; there are sgd, adam");
  EXPECT_ERROR(make_optimizer_fn("sgd", {{"rate", "1"}}), "lr, momentum, dampening");
  EXPECT_ERROR(make_optimizer_fn("adam", {{"betas", "0.9"}}),
               "betas are 1 numbers; there must be two");
}

TEST(OptimizerFactoryTest, ErrorsShowTheAllowedValues) {
  const char* not_negative = "; it must be a finite number of at least 0.";
  for (const std::string& name : optimizer_names()) {
    for (const char* value : {"-1", "nan", "inf"}) {
      const auto message = "the optimizer's lr is " + std::string(value) + not_negative;
      EXPECT_ERROR_AS(OptionError, make_optimizer_fn(name, {{"lr", value}}), message);
      EXPECT_ERROR(make_optimizer_fn(name, {{"weight_decay", value}}), "weight_decay is ");
    }
  }
  EXPECT_ERROR(make_optimizer_fn("sgd", {{"momentum", "-1"}}), "momentum is -1");
  EXPECT_ERROR(make_optimizer_fn("adagrad", {{"lr_decay", "-1"}}), "lr_decay is -1");
  EXPECT_ERROR(make_optimizer_fn("adagrad", {{"initial_accumulator_value", "-1"}}), "value is -1");
  EXPECT_ERROR(make_optimizer_fn("rmsprop", {{"eps", "-1"}}), "eps is -1");
  EXPECT_ERROR(make_optimizer_fn("rmsprop", {{"alpha", "-1"}}), "alpha is -1");
  EXPECT_ERROR(make_optimizer_fn("rmsprop", {{"momentum", "-1"}}), "momentum is -1");
  for (const char* betas : {"0.9,1", "-0.1,0.9", "0.9,nan"}) {
    EXPECT_ERROR(make_optimizer_fn("adam", {{"betas", betas}}), "each must be in [0, 1)");
  }
}

}  // namespace
}  // namespace linkboy::testing::optimizer_factory_test
