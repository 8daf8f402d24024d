// Tests of the conversion to synchronized batch norm: the layers, the calls, the lifetime and the
// errors.

#include <gtest/gtest.h>
#include <torch/script.h>
#include <torch/torch.h>

#include <array>
#include <vector>

#include "distributed/batch_norm_registry.hpp"
#include "linkboy/distributed/sync_batch_norm.hpp"
#include "linkboy/memory/activation_checkpoint.hpp"
#include "support/expect_error.hpp"
#include "support/thread_ranks.hpp"

namespace linkboy::testing::sync_batch_norm_conversion_test {
namespace {

using torch::nn::BatchNormOptions;
using RankPtr = std::shared_ptr<ThreadRank>;

TEST(SyncBatchNormTest, EvaluationAndOtherLayersStayBitIdentical) {
  torch::nn::BatchNorm2d converted(3);
  torch::nn::BatchNorm2d plain(3);
  Model model(converted);
  Meeting nobody(1);
  const auto handle =
      detail::convert_sync_batchnorm(model, std::make_shared<ThreadRank>(nobody, 0));
  converted->eval();
  for (auto norm : {converted, plain}) {
    const auto x = torch::randn({4, 3, 5, 5}).requires_grad_();
    const auto same = x.detach().clone().requires_grad_();
    const auto mean = norm->running_mean.clone();
    const auto var = norm->running_var.clone();
    const auto y = norm->forward(x);
    const auto expected = std::get<0>(at::native_batch_norm(same, norm->weight, norm->bias, mean,
                                                            var, norm->is_training(), 0.1, 1e-5));
    y.square().sum().backward();
    expected.square().sum().backward();
    EXPECT_TRUE(torch::equal(y, expected));
    EXPECT_TRUE(torch::equal(x.grad(), same.grad()));
    EXPECT_TRUE(torch::equal(norm->running_mean, mean));
    EXPECT_TRUE(torch::equal(norm->running_var, var));
  }
}

TEST(SyncBatchNormTest, EvaluationIsNotCollectiveEvenWithoutRunningStatistics) {
  torch::nn::BatchNorm1d norm(BatchNormOptions(3).track_running_stats(false));
  Model model(norm);
  Meeting nobody(1);
  const auto group = std::make_shared<ThreadRank>(nobody, 0);
  const auto handle = detail::convert_sync_batchnorm(model, group);
  model.eval();
  model(torch::randn({4, 3}));
  EXPECT_EQ(group->num_collectives, 0);
}

TEST(SyncBatchNormTest, IsCollectiveAlsoWithoutGradientsAndInInferenceMode) {
  run_ranks(2, [&](int64_t rank, const RankPtr& group) {
    torch::nn::BatchNorm1d norm(1);
    Model model(norm);
    const auto handle = detail::convert_sync_batchnorm(model, group);
    const auto x = torch::full({2, 1}, 2.0F * static_cast<float>(rank));
    {
      const at::NoGradGuard no_grad;
      EXPECT_NEAR(norm(x)[0].item<double>(), rank == 0 ? -1 : 1, 1e-4);
    }
    const c10::InferenceMode inference_mode;
    EXPECT_NEAR(norm(x)[0].item<double>(), rank == 0 ? -1 : 1, 1e-4);
  });
}

TEST(SyncBatchNormTest, SurvivesMovingAndLoadingOfTheModel) {
  run_ranks(2, [&](int64_t, const RankPtr& group) {
    torch::nn::BatchNorm1d norm(3);
    Model model(norm);
    const auto handle = detail::convert_sync_batchnorm(model, group);
    norm->to(torch::kDouble);
    model.to(torch::kCPU);
    model.load_state_dict(Model(torch::nn::BatchNorm1d(3)).state_dict());
    model(torch::randn({4, 3}, torch::kDouble));
    EXPECT_EQ(group->num_collectives, 1);
  });
}

TEST(SyncBatchNormTest, IsRecomputedForACheckpointedBackward) {
  run_ranks(2, [&](int64_t, const RankPtr& group) {
    torch::nn::BatchNorm1d norm(3);
    Model model(norm);
    const auto handle = detail::convert_sync_batchnorm(model, group);
    const auto x = torch::randn({4, 3}).requires_grad_();
    const auto y = checkpoint(norm, x);
    const auto running_mean = norm->running_mean.clone();
    y.square().sum().backward();
    EXPECT_EQ(group->num_collectives, 3);
    EXPECT_TRUE(torch::equal(norm->running_mean, running_mean));
  });
}

TEST(SyncBatchNormTest, DestroyingTheHandleEndsTheConversionButNotItsBackward) {
  run_ranks(2, [&](int64_t, const RankPtr& group) {
    torch::nn::BatchNorm1d norm(3);
    Model model(norm);
    SyncBatchNormHandle handle;
    EXPECT_EQ(handle.num_layers(), 0);
    handle = detail::convert_sync_batchnorm(model, group);
    EXPECT_EQ(handle.num_layers(), 1);
    const auto y = model(torch::randn({4, 3}).requires_grad_());
    handle = SyncBatchNormHandle();
    y.sum().backward();
    EXPECT_EQ(group->num_collectives, 2);
    model(torch::randn({4, 3}));
    EXPECT_EQ(group->num_collectives, 2);
  });
  EXPECT_EQ(detail::SyncBatchNormRegistry::instance().size(), 0U);
}

TEST(SyncBatchNormTest, NoLayerIsMistakenForOneOfADestroyedModel) {
  Meeting nobody(1);
  const auto group = std::make_shared<ThreadRank>(nobody, 0);
  const auto handle = [&] {
    Model model(torch::nn::BatchNorm1d(3));
    return detail::convert_sync_batchnorm(model, group);
  }();
  for (int i = 0; i < 100; ++i) torch::nn::BatchNorm1d(3)->forward(torch::randn({4, 3}));
  EXPECT_EQ(group->num_collectives, 0);
}

/// Returns a TorchScript model like one that was exported from Python.
torch::jit::Module script_net() {
  torch::jit::Module norm("BatchNorm1d");
  norm.register_parameter("weight", torch::full({3}, 1.5F).requires_grad_(), /*is_buffer=*/false);
  norm.register_parameter("bias", torch::ones({3}).requires_grad_(), /*is_buffer=*/false);
  norm.register_buffer("running_mean", torch::zeros({3}));
  norm.register_buffer("running_var", torch::ones({3}));
  norm.register_attribute("training", c10::BoolType::get(), true);
  norm.define(
      "def forward(self, x):\n    return torch.batch_norm(x, self.weight, self.bias, "
      "self.running_mean, self.running_var, self.training, 0.1, 1e-5, True)\n");
  torch::jit::Module net("Net");
  net.register_module("norm", norm);
  net.register_attribute("training", c10::BoolType::get(), true);
  net.define(
      "def forward(self, x):\n    return torch.tanh(self.norm.forward(x * 2.0) + x) * 3.0\n");
  return net;
}

TEST(SyncBatchNormTest, AppliesToOptimisedTorchScript) {
  torch::manual_seed(4);
  const auto x = torch::randn({9, 3});
  auto whole = script_net();
  std::vector<at::Tensor> outputs;
  std::vector<at::Tensor> gradients;
  for (int step = 0; step < 5; ++step) {
    const auto leaf = x.clone().requires_grad_();
    outputs.push_back(whole.forward({leaf}).toTensor());
    outputs.back().square().sum().backward();
    gradients.push_back(leaf.grad());
  }
  std::array<torch::jit::Module, 2> nets{script_net(), script_net()};
  run_ranks(2, [&](int64_t rank, const RankPtr& group) {
    Model model(nets[rank]);
    const auto handle = detail::convert_sync_batchnorm(model, group);
    EXPECT_EQ(handle.num_layers(), 1);
    const auto mine = [&](const at::Tensor& all) { return all.narrow(0, 4 * rank, 4 + rank); };
    for (int step = 0; step < 5; ++step) {
      const auto leaf = mine(x).clone().requires_grad_();
      const auto y = model(leaf);
      y.square().sum().backward();
      expect_near(y, mine(outputs[step]), 1e-5, "output");
      expect_near(leaf.grad(), mine(gradients[step]), 1e-5, "grad_input");
    }
    EXPECT_EQ(group->num_collectives, 10);
    const auto grad_weight = group->all_gather(model.parameters()[0].grad()).sum(0);
    expect_near(grad_weight, Model(whole).parameters()[0].grad(), 1e-5, "grad_weight");
    expect_near(model.named_tensors()[3].second, Model(whole).named_tensors()[3].second, 1e-5,
                "running_var");
  });
}

TEST(SyncBatchNormTest, RefusesUnsupportedLayers) {
  Meeting nobody(1);
  const auto group = std::make_shared<ThreadRank>(nobody, 0);
  torch::nn::Sequential nameless(
      torch::nn::BatchNorm1d(BatchNormOptions(3).affine(false).track_running_stats(false)));
  Model unknown(nameless);
  EXPECT_ERROR((void)detail::convert_sync_batchnorm(unknown, group), "the batch-norm layer \"0\"");
  torch::nn::BatchNorm1d shared(3);
  Model model(torch::nn::Sequential(shared, shared));
  EXPECT_ERROR((void)convert_sync_batchnorm(model, nullptr), "the process group is null");
  EXPECT_EQ(convert_sync_batchnorm(model, std::make_shared<ProcessGroup>()).num_layers(), 0);
  const auto handle = detail::convert_sync_batchnorm(model, group);
  EXPECT_EQ(handle.num_layers(), 1) << "a layer with two names counts once";
  EXPECT_ERROR((void)detail::convert_sync_batchnorm(model, group), "already synchronised");
  EXPECT_ERROR(shared(torch::randn({2, 4})), "has 3 channels");
}

TEST(SyncBatchNormTest, RefusesASecondDerivative) {
  const auto run = [] {
    run_ranks(2, [&](int64_t, const RankPtr& group) {
      torch::nn::BatchNorm1d norm(3);
      Model model(norm);
      const auto handle = detail::convert_sync_batchnorm(model, group);
      const auto x = torch::randn({4, 3}).requires_grad_();
      torch::autograd::grad({model(x).sum()}, {x}, {}, std::nullopt, /*create_graph=*/true);
    });
  };
  EXPECT_ERROR(run(), "no second derivative");
}

}  // namespace
}  // namespace linkboy::testing::sync_batch_norm_conversion_test
