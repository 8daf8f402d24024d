// Activation checkpoints with autocast.

#include <ATen/autocast_mode.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "linkboy/memory/activation_checkpoint.hpp"
#include "support/toy.hpp"
#include "unit/memory/checkpointed_step.hpp"

namespace linkboy::testing::activation_checkpoint_autocast_test {
namespace {

using torch::Tensor;

TEST(ActivationCheckpointTest, RecomputesUnderTheAutocastOfTheForward) {
  auto mlp = dropout_mlp();
  const auto x = rows().requires_grad_();
  std::vector<bool> enabled;
  const auto fn = [&](const Tensor& x) {
    enabled.push_back(at::autocast::is_autocast_enabled(torch::kCPU));
    EXPECT_EQ(at::autocast::get_autocast_dtype(torch::kCPU), torch::kBFloat16);
    const auto y = mlp->forward(x);
    return mlp->forward(y);
  };
  const auto plain = [&](Tensor x) {
    const Autocast autocast;
    return fn(x);
  };
  const auto checkpointed = [&](Tensor x) {
    const Autocast autocast;
    const auto y = checkpoint(fn, x);
    EXPECT_EQ(y.scalar_type(), torch::kBFloat16);
    return y;
  };
  const auto parameters = mlp->parameters();
  const auto expected = step(plain, parameters, x);
  EXPECT_TRUE(bit_equal(step(checkpointed, parameters, x), expected));
  EXPECT_EQ(enabled, (std::vector<bool>{true, true, true}));
  EXPECT_FALSE(at::autocast::is_autocast_enabled(torch::kCPU));

  // The opposite case: the backward pass runs with autocast, and the forward pass does not.
  enabled.clear();
  const auto y = checkpoint(fn, x);
  {
    const Autocast autocast;
    y.sum().backward();
    EXPECT_TRUE(at::autocast::is_autocast_enabled(torch::kCPU));
  }
  EXPECT_EQ(enabled, (std::vector<bool>{false, false}));
}

TEST(ActivationCheckpointTest, CastsOfTheRecomputationAreNotReused) {
  const auto weight = rows(8, 8).requires_grad_();
  const auto fn = [&](const Tensor& x) { return x.mm(weight).tanh(); };
  const auto x = rows().requires_grad_();
  const auto forward = [&] {
    const Autocast autocast;
    return checkpoint(fn, x);
  };
  forward().sum().backward();
  {
    const torch::NoGradGuard no_grad;
    weight.zero_();
  }
  EXPECT_EQ(forward().abs().sum().item<float>(), 0.0F);
}

TEST(ActivationCheckpointDeviceTest, RecomputesUnderTheAutocastOfTheForward_CUDA) {
  auto mlp = dropout_mlp();
  mlp->to(torch::kCUDA);
  const auto x = rows().to(torch::kCUDA).requires_grad_();
  const auto parameters = mlp->parameters();
  const auto plain = [&](Tensor x) {
    const Autocast autocast(torch::kCUDA);
    return mlp->forward(x);
  };
  const auto checkpointed = [&](Tensor x) {
    const Autocast autocast(torch::kCUDA);
    return checkpoint(mlp, x);
  };
  EXPECT_TRUE(bit_equal(step(checkpointed, parameters, x), step(plain, parameters, x)));
}

}  // namespace
}  // namespace linkboy::testing::activation_checkpoint_autocast_test
