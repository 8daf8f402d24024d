// Tests that compare the FLOPs of models with manually calculated numbers and with PyTorch's
// counter.

#include <gtest/gtest.h>
#include <torch/script.h>
#include <torch/torch.h>

#include <filesystem>
#include <sstream>
#include <string>
#include <vector>

#include "linkboy/callbacks/model_summary.hpp"
#include "linkboy/profiling/flop_counter.hpp"
#include "support/python_peer.hpp"
#include "support/temporary_folder.hpp"
#include "support/toy.hpp"

namespace linkboy::testing::flop_counter_test {
namespace {

std::optional<int64_t> flops_of(Model model, const at::Tensor& input) {
  return summarize(model, input).modules.front().flops;
}

TEST(FlopCounterTest, MultilayerPerceptronsAndLeNetNeedTheFlopsThatAreCountedByHand) {
  using namespace torch::nn;
  EXPECT_EQ(flops_of(toy_model(), torch::zeros({1, 4})), 2 * (4 * 5 + 5 * 3));
  EXPECT_EQ(flops_of(toy_model(), torch::zeros({7, 4})), 7 * 2 * (4 * 5 + 5 * 3));
  Sequential lenet(Conv2d(Conv2dOptions(1, 6, 5).padding(2)), ReLU(), MaxPool2d(2),
                   Conv2d(6, 16, 5), ReLU(), MaxPool2d(2), Flatten(), Linear(400, 120), ReLU(),
                   Linear(120, 84), ReLU(), Linear(84, 10));
  constexpr int64_t kFirst = 6 * 28 * 28 * 5 * 5;
  constexpr int64_t kSecond = 16 * 10 * 10 * 6 * 5 * 5;
  constexpr int64_t kLinear = 400 * 120 + 120 * 84 + 84 * 10;
  EXPECT_EQ(flops_of(lenet, torch::zeros({1, 1, 28, 28})), 2 * (kFirst + kSecond + kLinear));
}

TEST(FlopCounterTest, CountsGroupedAndTransposedConvolutions) {
  using namespace torch::nn;
  EXPECT_EQ(flops_of(Conv1d(Conv1dOptions(4, 8, 3).groups(2)), torch::zeros({1, 4, 10})),
            2 * 8 * 8 * 2 * 3);
  // Each input element is added to 6 * 3 * 3 outputs.
  EXPECT_EQ(flops_of(ConvTranspose2d(ConvTranspose2dOptions(4, 6, 3).stride(2)),
                     torch::zeros({1, 4, 5, 5})),
            2 * 4 * 5 * 5 * 6 * 3 * 3);
}

TEST(FlopCounterTest, RecurrentLayersMultiplyTheirMatricesForEachElement) {
  using namespace torch::nn;
  LSTM lstm(LSTMOptions(3, 5).num_layers(2).bidirectional(true));
  int64_t num_weights = 0;
  for (const auto& item : lstm->named_parameters()) {
    if (item.key().starts_with("weight")) num_weights += item.value().numel();
  }
  Model model(lstm);
  const auto table = summarize(model, [&]() -> c10::IValue {
    return std::get<0>(lstm->forward(torch::zeros({7, 2, 3})));
  });
  EXPECT_EQ(table.modules[0].flops, 7 * 2 * 2 * num_weights);
  EXPECT_EQ(table.modules[0].output_shape, (std::vector<int64_t>{7, 2, 10}));
}

TEST(FlopCounterTest, LayersWithoutFlopsOrOfUnknownCostHaveAShape) {
  Model embedding{torch::nn::Embedding(10, 4)};
  const auto free = summarize(embedding, torch::zeros({2, 3}, torch::kLong)).modules[0];
  EXPECT_EQ(free.flops, 0);
  EXPECT_EQ(free.output_shape, (std::vector<int64_t>{2, 3, 4}));
  Model norm{torch::nn::Sequential(torch::nn::LayerNorm(torch::nn::LayerNormOptions({4})))};
  const auto unknown = summarize(norm, torch::zeros({2, 4})).modules[1];
  EXPECT_EQ(unknown.flops, std::nullopt);
  EXPECT_EQ(unknown.output_shape, (std::vector<int64_t>{2, 4}));
}

/// Attention with one head: [N, L, 4] -> [N, L, 4].
struct AttentionImpl : torch::nn::Module {
  AttentionImpl() {
    register_module("query_key_value", query_key_value);
    register_module("out", out);
  }
  at::Tensor forward(const at::Tensor& x) {
    const auto parts = query_key_value(x).chunk(3, -1);
    return out(at::scaled_dot_product_attention(parts[0], parts[1], parts[2]));
  }
  torch::nn::Linear query_key_value{4, 12};
  torch::nn::Linear out{4, 4};
};
TORCH_MODULE(Attention);

TEST(FlopCounterTest, ProductsWithoutAWeightBelongToTheEnclosingModule) {
  torch::nn::Sequential net(torch::nn::Linear(4, 4), Attention(), torch::nn::Linear(4, 2));
  Model model(net);
  const auto table = summarize(model, torch::zeros({1, 5, 4}));
  constexpr int64_t kLinears = 2 * 5 * (4 * 12 + 4 * 4);
  constexpr int64_t kProducts = 2 * (2 * 5 * 5 * 4);  // queries with keys, and weights with values
  ASSERT_EQ(table.modules[2].name, "1");
  EXPECT_EQ(table.modules[2].flops, kLinears + kProducts);
  EXPECT_EQ(table.modules[0].flops, kLinears + kProducts + 2 * 5 * (4 * 4 + 4 * 2));
}

TEST(FlopCounterTest, ProductsBeforeTheFirstWeightBelongToTheModel) {
  Model model(toy_model());
  const auto table = summarize(model, [&]() -> c10::IValue {
    const auto x = torch::mm(torch::zeros({2, 3}), torch::zeros({3, 4}));
    return model(x);
  });
  EXPECT_EQ(table.modules[0].flops, 2 * 2 * 3 * 4 + 2 * 70);
  EXPECT_EQ(table.modules[1].flops, 2 * 40);
}

/// Returns the number of calls in `work` that are recorded.
std::size_t num_calls(const std::function<void()>& work) {
  return record_layer_calls(work, {}).size();
}

void multiply() { torch::mm(torch::zeros({2, 2}), torch::zeros({2, 2})); }

TEST(FlopCounterTest, RecordsOnlyWithinItsScopeWhichCanBeNested) {
  multiply();
  std::size_t num_inner = 0;
  const std::size_t num_outer = num_calls([&] {
    multiply();
    num_inner = num_calls(multiply);
    multiply();
  });
  EXPECT_EQ(num_inner, 1);
  EXPECT_EQ(num_outer, 2);
  multiply();
  EXPECT_EQ(num_calls([] {}), 0);
}

TEST(FlopCounterTest, StopsAndRethrowsAnExceptionOfTheWork) {
  const auto x = torch::zeros({2, 3});
  EXPECT_THROW(num_calls([&] { torch::mm(x, x); }), c10::Error);
  EXPECT_EQ(num_calls(multiply), 1);
}

TEST(FlopCounterTest, TotalsEqualPythonsFlopCounter) {
  SKIP_WITHOUT_PYTHON();
  const TemporaryFolder folder;
  std::istringstream lines(run_python("flop_peer.py", {folder.path().string()}));
  int num_models = 0;
  for (std::string line; std::getline(lines, line); ++num_models) {
    std::istringstream words(line);
    std::string name;
    int64_t expected = 0;
    words >> name >> expected;
    std::vector<int64_t> shape;
    for (int64_t size = 0; words >> size;) shape.push_back(size);
    const Model model(torch::jit::load((folder / (name + ".pt")).string()));
    EXPECT_EQ(flops_of(model, torch::zeros(shape)), expected) << line;
  }
  EXPECT_EQ(num_models, 4);
}

}  // namespace
}  // namespace linkboy::testing::flop_counter_test
