// Tests that synchronized batch norm has the same results as one process with the whole batch.

#include "linkboy/distributed/sync_batch_norm.hpp"

#include <ATen/autocast_mode.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <array>
#include <functional>
#include <vector>

#include "distributed/batch_norm_registry.hpp"
#include "support/thread_ranks.hpp"

namespace linkboy::testing::sync_batch_norm_test {
namespace {

using torch::nn::BatchNormOptions;
using RankPtr = std::shared_ptr<ThreadRank>;
using MakeModel = std::function<torch::nn::Sequential()>;

struct Batches {
  std::vector<int64_t> batch_sizes = {3, 5};
  double tolerance = 1e-5;
  at::ScalarType dtype = torch::kFloat;
  std::function<at::Tensor(at::Tensor)> change_input = [](at::Tensor input) { return input; };
};

/// Runs two forward and backward passes, on ranks with a batch each and in one process with all of
/// the samples. Compares outputs, gradients and buffers.
void expect_equals_whole_batch(const MakeModel& make_model, std::vector<int64_t> shape,
                               const Batches& batches = {}) {
  torch::manual_seed(1);
  shape.insert(shape.begin(), 0);
  for (const auto size : batches.batch_sizes) shape[0] += size;
  auto whole = make_model();
  whole->to(batches.dtype);
  for (auto& parameter : whole->parameters()) parameter.data().uniform_(0.5, 2);
  const StateDict state = Model(whole).state_dict();
  std::vector<torch::nn::Sequential> models;
  for (std::size_t i = 0; i < batches.batch_sizes.size(); ++i) {
    models.push_back(make_model());
    models.back()->to(batches.dtype);
    Model(models.back()).load_state_dict(state);
  }
  std::vector<at::Tensor> xs;
  std::vector<at::Tensor> gs;
  std::vector<at::Tensor> ys;
  for (int step = 0; step < 2; ++step) {
    xs.push_back(torch::randn(shape, batches.dtype).mul_(3).add_(2).requires_grad_());
    ys.push_back(whole->forward(batches.change_input(xs[step])));
    gs.push_back(torch::randn_like(ys[step]));
    ys[step].backward(gs[step]);
  }
  std::vector<std::vector<at::Tensor>> grads(models.size());
  run_ranks(static_cast<int64_t>(models.size()), [&](int64_t rank, const RankPtr& group) {
    int64_t begin = 0;
    for (int64_t i = 0; i < rank; ++i) begin += batches.batch_sizes[i];
    const auto mine = [&](const at::Tensor& all) {
      return all.detach().narrow(0, begin, batches.batch_sizes[rank]);
    };
    Model model(models[rank]);
    const auto handle = detail::convert_sync_batchnorm(model, group);
    for (int step = 0; step < 2; ++step) {
      const auto x = mine(xs[step]).clone().requires_grad_();
      const auto y = models[rank]->forward(batches.change_input(x));
      y.backward(mine(gs[step]));
      expect_near(y, mine(ys[step]), batches.tolerance, "output");
      expect_near(x.grad(), mine(xs[step].grad()), batches.tolerance, "grad_input");
    }
    for (const auto& parameter : models[rank]->parameters()) {
      grads[rank].push_back(group->all_gather(parameter.grad()).sum(0));
    }
  });
  for (std::size_t rank = 0; rank < models.size(); ++rank) {
    for (std::size_t i = 0; i < grads[rank].size(); ++i) {
      expect_near(grads[rank][i], whole->parameters()[i].grad(), batches.tolerance, "gradient");
    }
    for (std::size_t i = 0; i < whole->buffers().size(); ++i) {
      expect_near(models[rank]->buffers()[i], whole->buffers()[i], batches.tolerance, "buffer");
      EXPECT_TRUE(torch::equal(models[rank]->buffers()[i], models[0]->buffers()[i]));
    }
  }
  EXPECT_EQ(detail::SyncBatchNormRegistry::instance().size(), 0U);
}

template <class BatchNorm>
MakeModel only(BatchNormOptions options) {
  return [options] { return torch::nn::Sequential(BatchNorm(options)); };
}

TEST(SyncBatchNormTest, EqualsOneProcessWithTheWholeBatch) {
  for (const bool affine : {true, false}) {
    const auto options = BatchNormOptions(4).affine(affine);
    expect_equals_whole_batch(only<torch::nn::BatchNorm1d>(options), {4});
    expect_equals_whole_batch(only<torch::nn::BatchNorm1d>(options), {4, 7});
    expect_equals_whole_batch(only<torch::nn::BatchNorm2d>(options), {4, 5, 3});
    expect_equals_whole_batch(only<torch::nn::BatchNorm3d>(options), {4, 2, 3, 2});
  }
}

TEST(SyncBatchNormTest, EqualsTheWholeBatchInFloat64To12Digits) {
  const Batches batches{.batch_sizes = {2, 7, 4}, .tolerance = 1e-12, .dtype = torch::kDouble};
  expect_equals_whole_batch(only<torch::nn::BatchNorm1d>(BatchNormOptions(3)), {3}, batches);
  expect_equals_whole_batch(only<torch::nn::BatchNorm2d>(BatchNormOptions(3)), {3, 4, 5}, batches);
}

TEST(SyncBatchNormTest, IgnoresAnEmptyBatch) {
  for (const auto& sizes : {std::vector<int64_t>{0, 4, 3}, {4, 3, 0}, {4, 0}}) {
    expect_equals_whole_batch(only<torch::nn::BatchNorm2d>(BatchNormOptions(3)), {3, 2, 2},
                              {.batch_sizes = sizes});
  }
}

TEST(SyncBatchNormTest, AveragesCumulativelyWithoutAMomentum) {
  const auto options = BatchNormOptions(3).momentum(std::nullopt);
  expect_equals_whole_batch(only<torch::nn::BatchNorm1d>(options), {3});
}

TEST(SyncBatchNormTest, AcceptsInputsOfAnyLayout) {
  const auto channels_last = [](at::Tensor x) {
    return x.contiguous(at::MemoryFormat::ChannelsLast);
  };
  const auto strided = [](at::Tensor x) { return x.transpose(2, 3); };
  const auto make = only<torch::nn::BatchNorm2d>(BatchNormOptions(4));
  expect_equals_whole_batch(make, {4, 3, 5}, {.change_input = channels_last});
  expect_equals_whole_batch(make, {4, 3, 5}, {.change_input = strided});
}

TEST(SyncBatchNormTest, AppliesToLayersInASequential) {
  const Batches batches{.tolerance = 1e-10, .dtype = torch::kDouble};
  const auto make = [] {
    const auto conv = torch::nn::Conv2dOptions(2, 2, 3).bias(false);  // its gradient would be 0
    return torch::nn::Sequential(torch::nn::Conv2d(conv), torch::nn::BatchNorm2d(2),
                                 torch::nn::Tanh(), torch::nn::Conv2d(conv),
                                 torch::nn::BatchNorm2d(2));
  };
  expect_equals_whole_batch(make, {2, 6, 6}, batches);
}

TEST(SyncBatchNormTest, RecognisesALayerWithoutRunningStatisticsByItsWeight) {
  const auto options = BatchNormOptions(3).track_running_stats(false);
  expect_equals_whole_batch(only<torch::nn::BatchNorm1d>(options), {3});
}

TEST(SyncBatchNormTest, AcceptsSixteenBitInputsWithStatisticsIn32Bits) {
  const auto to_bfloat16 = [](at::Tensor x) { return x.to(torch::kBFloat16); };
  const Batches batches{.tolerance = 0.01, .change_input = to_bfloat16};
  expect_equals_whole_batch(only<torch::nn::BatchNorm2d>(BatchNormOptions(4)), {4, 5, 3}, batches);
  const Batches all{.tolerance = 0.01, .dtype = torch::kBFloat16};
  expect_equals_whole_batch(only<torch::nn::BatchNorm2d>(BatchNormOptions(4)), {4, 5, 3}, all);
}

/// Holds the layer as a BatchNorm1d and calls its `forward` directly.
struct TypedNet : torch::nn::Cloneable<TypedNet> {
  TypedNet() { reset(); }
  void reset() override {
    linear = register_module("linear", torch::nn::Linear(3, 4));
    norm = register_module("norm", torch::nn::BatchNorm1d(4));
  }
  at::Tensor forward(const at::Tensor& x) { return norm(linear(x)); }
  torch::nn::Linear linear{nullptr};
  torch::nn::BatchNorm1d norm{nullptr};
};

TEST(SyncBatchNormTest, AppliesToTypedMembersUnderAutocast) {
  torch::manual_seed(2);
  const auto whole = std::make_shared<TypedNet>();
  const auto x = torch::randn({8, 3});
  const auto forward = [](TypedNet& net, const at::Tensor& input) {
    at::autocast::set_autocast_enabled(at::kCPU, true);
    auto output = net.forward(input);
    at::autocast::set_autocast_enabled(at::kCPU, false);
    at::autocast::clear_cache();
    return output;
  };
  run_ranks(2, [&](int64_t rank, const RankPtr& group) {
    const auto net = std::dynamic_pointer_cast<TypedNet>(whole->clone());
    Model model(net);
    const auto handle = detail::convert_sync_batchnorm(model, group);
    EXPECT_EQ(handle.num_layers(), 1);
    const auto y = forward(*net, x.narrow(0, 4 * rank, 4));
    EXPECT_EQ(y.scalar_type(), torch::kBFloat16);
    y.sum().backward();
    EXPECT_EQ(net->norm->bias.grad().scalar_type(), torch::kFloat);
    if (rank == 1) forward(*whole, x);
    EXPECT_EQ(group->num_collectives, 2);
    group->all_gather(x);
    expect_near(net->norm->running_var, whole->norm->running_var, 1e-5, "running_var");
  });
}

TEST(SyncBatchNormTest, GradientsAgreeWithFiniteDifferences) {
  torch::manual_seed(3);
  const auto g = torch::randn({5, 2, 3}, torch::kDouble);
  const auto x = torch::randn({5, 2, 3}, torch::kDouble);
  auto grad = torch::zeros_like(x);
  const auto loss = [&](const at::Tensor& input, bool backward) {
    std::array<at::Tensor, 2> losses;
    run_ranks(2, [&](int64_t rank, const RankPtr& group) {
      torch::nn::BatchNorm1d norm(2);
      norm->to(torch::kDouble);
      Model model(norm);
      const auto handle = detail::convert_sync_batchnorm(model, group);
      const auto mine = [&](const at::Tensor& all) { return all.narrow(0, 2 * rank, 2 + rank); };
      const auto leaf = mine(input).clone().requires_grad_();
      losses[rank] = (norm(leaf).tanh() * mine(g)).sum();
      if (!backward) return;
      losses[rank].backward();
      mine(grad).copy_(leaf.grad());
    });
    return (losses[0] + losses[1]).item<double>();
  };
  loss(x, /*backward=*/true);
  for (int64_t i = 0; i < x.numel(); ++i) {
    const auto step = torch::zeros_like(x);
    step.view(-1)[i] = 1e-6;
    const double slope = (loss(x + step, false) - loss(x - step, false)) / 2e-6;
    EXPECT_NEAR(grad.view(-1)[i].item<double>(), slope, 1e-8) << "input " << i;
  }
}

}  // namespace
}  // namespace linkboy::testing::sync_batch_norm_test
