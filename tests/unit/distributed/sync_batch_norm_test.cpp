// Tests that synchronized batch norm has the same results as one process with the whole batch, and
// the conversion to it.

#include "linkboy/distributed/sync_batch_norm.hpp"

#include <ATen/autocast_mode.h>
#include <gtest/gtest.h>
#include <torch/script.h>
#include <torch/torch.h>

#include <functional>
#include <vector>

#include "distributed/batch_norm_registry.hpp"
#include "linkboy/memory/activation_checkpoint.hpp"
#include "support/expect_error.hpp"
#include "support/thread_ranks.hpp"

namespace linkboy::testing::sync_batch_norm_test {
namespace {

using at::Tensor;
using torch::nn::BatchNorm1d;
using torch::nn::BatchNorm2d;
using torch::nn::BatchNorm3d;
using torch::nn::BatchNormOptions;
using RankPtr = std::shared_ptr<ThreadRank>;

// ---- Results ------------------------------------------------------------------------------------

struct Case {
  std::string name;
  std::function<Model()> make_model;
  std::vector<int64_t> shape;  // of a sample
  double tolerance = 1e-5;
  at::ScalarType dtype = torch::kFloat;
  std::vector<int64_t> batch_sizes = {3, 5};
  std::function<Tensor(const Model&, const Tensor&)> forward =
      [](const Model& model, const Tensor& x) { return model(x); };
  int num_steps = 2;
};

/// Runs forward and backward passes, on ranks with a batch each and in one process with all of the
/// samples. Compares outputs, gradients and buffers.
void expect_equals_whole_batch(const Case& with) {
  SCOPED_TRACE(with.name);
  torch::manual_seed(1);
  auto shape = with.shape;
  shape.insert(shape.begin(), 0);
  for (const auto size : with.batch_sizes) shape[0] += size;
  const auto make_model = [&] {
    Model model = with.make_model();
    if (with.dtype != torch::kFloat) model.module()->to(with.dtype);
    return model;
  };
  Model whole = make_model();
  for (auto& parameter : whole.parameters()) parameter.data().uniform_(0.5, 2);
  std::vector<Model> models;
  for (std::size_t i = 0; i < with.batch_sizes.size(); ++i) {
    models.push_back(make_model());
    models.back().load_state_dict(whole.state_dict());
  }
  std::vector<Tensor> xs, gs, ys;
  for (int step = 0; step < with.num_steps; ++step) {
    xs.push_back(torch::randn(shape, with.dtype).mul_(3).add_(2).requires_grad_());
    ys.push_back(with.forward(whole, xs[step]));
    gs.push_back(torch::randn_like(ys[step]));
    ys[step].backward(gs[step]);
  }
  std::vector<std::vector<Tensor>> grads(models.size());
  run_ranks(static_cast<int64_t>(models.size()), [&](int64_t rank, const RankPtr& group) {
    int64_t begin = 0;
    for (int64_t i = 0; i < rank; ++i) begin += with.batch_sizes[i];
    const auto mine = [&](const Tensor& all) {
      return all.detach().narrow(0, begin, with.batch_sizes[rank]);
    };
    const auto handle = detail::convert_sync_batchnorm(models[rank], group);
    for (int step = 0; step < with.num_steps; ++step) {
      const auto x = mine(xs[step]).clone().requires_grad_();
      const auto y = with.forward(models[rank], x);
      y.backward(mine(gs[step]));
      expect_near(y, mine(ys[step]), with.tolerance, "output");
      expect_near(x.grad(), mine(xs[step].grad()), with.tolerance, "grad_input");
    }
    EXPECT_EQ(group->num_collectives, 2 * with.num_steps * handle.num_layers());
    for (const auto& parameter : models[rank].parameters()) {
      grads[rank].push_back(group->all_gather(parameter.grad()).sum(0));
    }
  });
  const double tolerance_of_buffers =
      with.dtype == torch::kBFloat16 ? with.tolerance : std::min(with.tolerance, 1e-5);
  const NamedTensors expected = whole.named_tensors();
  for (std::size_t rank = 0; rank < models.size(); ++rank) {
    for (std::size_t i = 0; i < grads[rank].size(); ++i) {
      expect_near(grads[rank][i], whole.parameters()[i].grad(), with.tolerance, "gradient");
    }
    const NamedTensors tensors = models[rank].named_tensors();
    for (std::size_t i = 0; i < expected.size(); ++i) {
      expect_near(tensors[i].second, expected[i].second, tolerance_of_buffers, "buffer");
      EXPECT_TRUE(torch::equal(tensors[i].second, models[0].named_tensors()[i].second));
    }
  }
  EXPECT_EQ(detail::SyncBatchNormRegistry::instance().size(), 0U);
}

template <class BatchNorm>
std::function<Model()> only(BatchNormOptions options) {
  return [options] { return Model(torch::nn::Sequential(BatchNorm(options))); };
}

/// Holds the layer as a BatchNorm1d and calls its `forward` directly.
struct TypedNet : torch::nn::Module {
  TypedNet() {
    register_module("linear", linear);
    register_module("norm", norm);
  }
  Tensor forward(const Tensor& x) { return norm(linear(x)); }
  torch::nn::Linear linear{torch::nn::LinearOptions(3, 4).bias(false)};  // its gradient would be 0
  BatchNorm1d norm{4};
};

/// Returns a TorchScript model like one that was exported from Python.
Model script_net() {
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

TEST(SyncBatchNormTest, EqualsOneProcessWithTheWholeBatch) {
  for (const bool affine : {true, false}) {
    const auto options = BatchNormOptions(4).affine(affine);
    expect_equals_whole_batch({"rows", only<BatchNorm1d>(options), {4}});
    expect_equals_whole_batch({"1d", only<BatchNorm1d>(options), {4, 7}});
    expect_equals_whole_batch({"2d", only<BatchNorm2d>(options), {4, 5, 3}});
    expect_equals_whole_batch({"3d", only<BatchNorm3d>(options), {4, 2, 3, 2}});
  }
  const auto two_dimensions = only<BatchNorm2d>(BatchNormOptions(3));
  for (const auto& sizes : {std::vector<int64_t>{0, 4, 3}, {4, 3, 0}, {4, 0}}) {
    expect_equals_whole_batch({.name = "an empty batch",
                               .make_model = two_dimensions,
                               .shape = {3, 2, 2},
                               .batch_sizes = sizes});
  }
  expect_equals_whole_batch(
      {"float64", two_dimensions, {3, 4, 5}, 1e-12, torch::kDouble, {2, 7, 4}});
  expect_equals_whole_batch({"bfloat16", two_dimensions, {3, 5, 4}, 0.01, torch::kBFloat16});
}

TEST(SyncBatchNormTest, EqualsTheWholeBatchForEveryKindOfModelAndInput) {
  const auto of_input = [](const std::function<Tensor(const Tensor&)>& change) {
    return [=](const Model& model, const Tensor& x) { return model(change(x)); };
  };
  const auto under_autocast = [](const Model& model, const Tensor& x) {
    at::autocast::set_autocast_enabled(at::kCPU, true);
    auto y = model(x);
    at::autocast::set_autocast_enabled(at::kCPU, false);
    at::autocast::clear_cache();
    EXPECT_EQ(y.scalar_type(), torch::kBFloat16);
    return y;
  };
  const auto conv_net = []() -> Model {
    const auto conv = torch::nn::Conv2dOptions(2, 2, 3).bias(false);  // its gradient would be 0
    return torch::nn::Sequential(torch::nn::Conv2d(conv), BatchNorm2d(2), torch::nn::Tanh(),
                                 torch::nn::Conv2d(conv), BatchNorm2d(2));
  };
  const auto two_dimensions = only<BatchNorm2d>(BatchNormOptions(4));
  const std::vector<Case> cases{
      {"no momentum", only<BatchNorm1d>(BatchNormOptions(3).momentum(std::nullopt)), {3}},
      // Such a layer is recognised by its weight.
      {"no statistics", only<BatchNorm1d>(BatchNormOptions(3).track_running_stats(false)), {3}},
      {"several layers", conv_net, {2, 6, 6}, 1e-10, torch::kDouble},
      {.name = "optimised TorchScript", .make_model = script_net, .shape = {3}, .num_steps = 5},
      {.name = "channels last",
       .make_model = two_dimensions,
       .shape = {4, 3, 5},
       .forward =
           of_input([](const Tensor& x) { return x.contiguous(at::MemoryFormat::ChannelsLast); })},
      {.name = "strides",
       .make_model = two_dimensions,
       .shape = {4, 3, 5},
       .forward = of_input([](const Tensor& x) { return x.transpose(2, 3); })},
      {.name = "bfloat16 with statistics in 32 bits",
       .make_model = two_dimensions,
       .shape = {4, 5, 3},
       .tolerance = 0.01,
       .forward = of_input([](const Tensor& x) { return x.to(torch::kBFloat16); })},
      {.name = "a typed member under autocast",
       .make_model = []() -> Model { return std::make_shared<TypedNet>(); },
       .shape = {3},
       .tolerance = 0.02,
       .forward = under_autocast}};
  for (const Case& each : cases) expect_equals_whole_batch(each);
}

// ---- Conversion: the layers, the calls, the lifetime and the errors -----------------------------

/// A converted layer of one rank.
struct Converted {
  explicit Converted(const RankPtr& rank, const BatchNormOptions& options = BatchNormOptions(3))
      : norm(options), model(norm), handle(detail::convert_sync_batchnorm(model, rank)) {}
  BatchNorm1d norm;
  Model model;
  SyncBatchNormHandle handle;
};

struct SyncBatchNormConversionTest : ::testing::Test {
  Meeting nobody{1};
  const RankPtr group = std::make_shared<ThreadRank>(nobody, 0);
};

TEST_F(SyncBatchNormConversionTest, EvaluationAndOtherLayersStayBitIdentical) {
  BatchNorm2d converted(3), plain(3);
  Model model(converted);
  const auto handle = detail::convert_sync_batchnorm(model, group);
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

TEST_F(SyncBatchNormConversionTest, EvaluationIsNotCollectiveEvenWithoutRunningStatistics) {
  Converted layer(group, BatchNormOptions(3).track_running_stats(false));
  layer.model.eval();
  layer.model(torch::randn({4, 3}));
  EXPECT_EQ(group->num_collectives, 0);
}

TEST_F(SyncBatchNormConversionTest, NoLayerIsMistakenForOneOfADestroyedModel) {
  const auto handle = Converted(group).handle;
  for (int i = 0; i < 100; ++i) BatchNorm1d(3)->forward(torch::randn({4, 3}));
  EXPECT_EQ(group->num_collectives, 0);
}

TEST_F(SyncBatchNormConversionTest, IsCollectiveAlsoWithoutGradientsAndInInferenceMode) {
  run_ranks(2, [](int64_t rank, const RankPtr& of_two) {
    const Converted layer(of_two, BatchNormOptions(1));
    const auto x = torch::full({2, 1}, 2.0F * static_cast<float>(rank));
    {
      const at::NoGradGuard no_grad;
      EXPECT_NEAR(layer.model(x)[0].item<double>(), rank == 0 ? -1 : 1, 1e-4);
    }
    const c10::InferenceMode inference_mode;
    EXPECT_NEAR(layer.model(x)[0].item<double>(), rank == 0 ? -1 : 1, 1e-4);
  });
}

TEST_F(SyncBatchNormConversionTest, SurvivesMovingAndLoadingOfTheModel) {
  run_ranks(2, [](int64_t, const RankPtr& of_two) {
    Converted layer(of_two);
    layer.norm->to(torch::kDouble);
    layer.model.to(torch::kCPU);
    layer.model.load_state_dict(Model(BatchNorm1d(3)).state_dict());
    layer.model(torch::randn({4, 3}, torch::kDouble));
    EXPECT_EQ(of_two->num_collectives, 1);
  });
}

TEST_F(SyncBatchNormConversionTest, IsRecomputedForACheckpointedBackward) {
  run_ranks(2, [](int64_t, const RankPtr& of_two) {
    const Converted layer(of_two);
    const auto y = checkpoint(layer.norm, torch::randn({4, 3}).requires_grad_());
    const auto running_mean = layer.norm->running_mean.clone();
    y.square().sum().backward();
    EXPECT_EQ(of_two->num_collectives, 3);
    EXPECT_TRUE(torch::equal(layer.norm->running_mean, running_mean));
  });
}

TEST_F(SyncBatchNormConversionTest, DestroyingTheHandleEndsTheConversionButNotItsBackward) {
  EXPECT_EQ(SyncBatchNormHandle().num_layers(), 0);
  run_ranks(2, [](int64_t, const RankPtr& of_two) {
    Converted layer(of_two);
    EXPECT_EQ(layer.handle.num_layers(), 1);
    const auto y = layer.model(torch::randn({4, 3}).requires_grad_());
    layer.handle = SyncBatchNormHandle();
    y.sum().backward();
    EXPECT_EQ(of_two->num_collectives, 2);
    layer.model(torch::randn({4, 3}));
    EXPECT_EQ(of_two->num_collectives, 2);
  });
  EXPECT_EQ(detail::SyncBatchNormRegistry::instance().size(), 0U);
}

TEST_F(SyncBatchNormConversionTest, RefusesUnsupportedLayers) {
  torch::nn::Sequential nameless(
      BatchNorm1d(BatchNormOptions(3).affine(false).track_running_stats(false)));
  Model unknown(nameless);
  EXPECT_ERROR((void)detail::convert_sync_batchnorm(unknown, group), "the batch-norm layer \"0\"");
  BatchNorm1d shared(3);
  Model model(torch::nn::Sequential(shared, shared));
  EXPECT_ERROR((void)convert_sync_batchnorm(model, nullptr), "the process group is null");
  EXPECT_EQ(convert_sync_batchnorm(model, std::make_shared<ProcessGroup>()).num_layers(), 0);
  const auto handle = detail::convert_sync_batchnorm(model, group);
  EXPECT_EQ(handle.num_layers(), 1) << "a layer with two names counts once";
  EXPECT_ERROR((void)detail::convert_sync_batchnorm(model, group), "already synchronised");
  EXPECT_ERROR(shared(torch::randn({2, 4})), "has 3 channels");
}

TEST_F(SyncBatchNormConversionTest, RefusesASecondDerivative) {
  const auto run = [] {
    run_ranks(2, [](int64_t, const RankPtr& of_two) {
      const Converted layer(of_two);
      const auto x = torch::randn({4, 3}).requires_grad_();
      torch::autograd::grad({layer.model(x).sum()}, {x}, {}, std::nullopt, /*create_graph=*/true);
    });
  };
  EXPECT_ERROR(run(), "no second derivative");
}

}  // namespace
}  // namespace linkboy::testing::sync_batch_norm_test
