// Activation checkpoints with autocast.

#include <ATen/autocast_mode.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <functional>

#include "linkboy/memory/activation_checkpoint.hpp"
#include "support/toy.hpp"
#include "unit/memory/checkpointed_step.hpp"

namespace linkboy::testing::activation_checkpoint_autocast_test {
namespace {

using torch::Tensor;
using Network = std::function<Tensor(Tensor)>;

/// Returns a network that runs `network` with autocast.
Network with_autocast(const Network& network, torch::DeviceType device = torch::kCPU) {
  return [=](Tensor x) {
    const Autocast autocast(device);
    return network(x);
  };
}

TEST(ActivationCheckpointTest, RecomputesUnderTheAutocastOfTheForward) {
  auto mlp = dropout_mlp();
  const auto x = rows().requires_grad_();
  std::vector<bool> enabled;
  const auto fn = [&](const Tensor& x) {
    enabled.push_back(at::autocast::is_autocast_enabled(torch::kCPU));
    EXPECT_EQ(at::autocast::get_autocast_dtype(torch::kCPU), torch::kBFloat16);
    return mlp->forward(mlp->forward(x));
  };
  const auto checkpointed = [&](Tensor x) {
    const auto y = checkpoint(fn, x);
    EXPECT_EQ(y.scalar_type(), torch::kBFloat16);
    return y;
  };
  const auto expected = step(with_autocast(fn), mlp->parameters(), x);
  EXPECT_TRUE(bit_equal(step(with_autocast(checkpointed), mlp->parameters(), x), expected));
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
  const auto forward = with_autocast([&](Tensor x) { return checkpoint(fn, x); });
  forward(rows().requires_grad_()).sum().backward();
  {
    const torch::NoGradGuard no_grad;
    weight.zero_();
  }
  EXPECT_EQ(forward(rows().requires_grad_()).abs().sum().item<float>(), 0.0F);
}

TEST(ActivationCheckpointDeviceTest, RecomputesUnderTheAutocastOfTheForward_CUDA) {
  auto mlp = dropout_mlp();
  mlp->to(torch::kCUDA);
  const auto x = rows().to(torch::kCUDA).requires_grad_();
  const auto autocast_step = [&](const Network& network) {
    return step(with_autocast(network, torch::kCUDA), mlp->parameters(), x);
  };
  const auto plain = autocast_step([&](Tensor x) { return mlp->forward(x); });
  EXPECT_TRUE(bit_equal(autocast_step([&](Tensor x) { return checkpoint(mlp, x); }), plain));
}

}  // namespace
}  // namespace linkboy::testing::activation_checkpoint_autocast_test
