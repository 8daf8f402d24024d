#include "linkboy/run/optimizer_factory.hpp"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "support/expect_error.hpp"

namespace linkboy::testing::optimizer_factory_test {
namespace {

template <class Options>
Options options_of(const std::string& name, const TextSettings& settings = {}) {
  const auto optimizer = make_optimizer_fn(name, settings)({torch::zeros({2}).requires_grad_()});
  return static_cast<const Options&>(optimizer->param_groups().front().options());
}

// The exception is the learning rate of SGD: LibTorch has no default, and Python's is 0.001.
TEST(OptimizerFactoryTest, DefaultsEqualLibTorch) {
  EXPECT_TRUE(options_of<torch::optim::SGDOptions>("sgd") == torch::optim::SGDOptions(1e-3));
  EXPECT_TRUE(options_of<torch::optim::AdamOptions>("adam") == torch::optim::AdamOptions());
  EXPECT_TRUE(options_of<torch::optim::AdamWOptions>("adamw") == torch::optim::AdamWOptions());
  EXPECT_TRUE(options_of<torch::optim::AdagradOptions>("adagrad") ==
              torch::optim::AdagradOptions());
  EXPECT_TRUE(options_of<torch::optim::RMSpropOptions>("rmsprop") ==
              torch::optim::RMSpropOptions());
  EXPECT_EQ(optimizer_names().size(), 5U);
}

TEST(OptimizerFactoryTest, EveryOptionReachesTheOptimizer) {
  EXPECT_TRUE(
      options_of<torch::optim::SGDOptions>(
          "sgd",
          {{"lr", "0.5"}, {"momentum", "0.9"}, {"weight_decay", "0.1"}, {"nesterov", "true"}}) ==
      torch::optim::SGDOptions(0.5).momentum(0.9).weight_decay(0.1).nesterov(true));
  EXPECT_TRUE(
      options_of<torch::optim::SGDOptions>("sgd", {{"momentum", "0.9"}, {"dampening", "0.5"}}) ==
      torch::optim::SGDOptions(1e-3).momentum(0.9).dampening(0.5));
  const TextSettings adam{{"lr", "0.5"},
                          {"betas", "0.8,0.9"},
                          {"eps", "1e-6"},
                          {"weight_decay", "0.1"},
                          {"amsgrad", "true"}};
  EXPECT_TRUE(
      options_of<torch::optim::AdamOptions>("adam", adam) ==
      torch::optim::AdamOptions(0.5).betas({0.8, 0.9}).eps(1e-6).weight_decay(0.1).amsgrad(true));
  EXPECT_TRUE(
      options_of<torch::optim::AdamWOptions>("adamw", adam) ==
      torch::optim::AdamWOptions(0.5).betas({0.8, 0.9}).eps(1e-6).weight_decay(0.1).amsgrad(true));
  EXPECT_TRUE(options_of<torch::optim::AdagradOptions>(
                  "adagrad", {{"lr", "0.5"},
                              {"lr_decay", "0.25"},
                              {"weight_decay", "0.1"},
                              {"initial_accumulator_value", "0.75"},
                              {"eps", "1e-6"}}) == torch::optim::AdagradOptions(0.5)
                                                       .lr_decay(0.25)
                                                       .weight_decay(0.1)
                                                       .initial_accumulator_value(0.75)
                                                       .eps(1e-6));
  EXPECT_TRUE(options_of<torch::optim::RMSpropOptions>("rmsprop", {{"lr", "0.5"},
                                                                   {"alpha", "0.9"},
                                                                   {"eps", "1e-6"},
                                                                   {"weight_decay", "0.1"},
                                                                   {"momentum", "0.5"},
                                                                   {"centered", "true"}}) ==
              torch::optim::RMSpropOptions(0.5)
                  .alpha(0.9)
                  .eps(1e-6)
                  .weight_decay(0.1)
                  .momentum(0.5)
                  .centered(true));
}

TEST(OptimizerFactoryTest, ErrorsListTheAllowedNames) {
  EXPECT_THROW(make_optimizer_fn("sgdm"), OptionError);
  EXPECT_ERROR(make_optimizer_fn("sgdm"), "there is no optimizer \"sgdm\"; there are sgd, adam");
  EXPECT_ERROR(make_optimizer_fn("sgd", {{"rate", "1"}}), "lr, momentum, dampening");
  EXPECT_ERROR(make_optimizer_fn("adam", {{"betas", "0.9"}}),
               "betas are 1 numbers; there must be two");
}

}  // namespace
}  // namespace linkboy::testing::optimizer_factory_test
