#include "distributed/parameter_gate.hpp"

#include <gtest/gtest.h>
#include <torch/csrc/jit/api/module.h>
#include <torch/script.h>
#include <torch/torch.h>

#include <cstring>
#include <functional>
#include <memory>
#include <unordered_map>
#include <vector>

#include "linkboy/distributed/skip_init.hpp"
#include "linkboy/memory/activation_checkpoint.hpp"
#include "linkboy/precision/autocast.hpp"
#include "support/expect_error.hpp"

namespace linkboy::testing::parameter_gate_test {
namespace {

/// Takes the memory of all parameters, and gives it back only to those that an operation uses.
class Miser final : public GatedStorages {
 public:
  static std::shared_ptr<Miser> of(const std::vector<torch::Tensor>& parameters) {
    auto miser = std::make_shared<Miser>();
    for (const auto& parameter : parameters) {
      const auto number = miser->storages_.size();
      auto* storage = parameter.storage().unsafeGetStorageImpl();
      miser->storages_.push_back(parameter.storage());
      miser->data_.push_back(parameter.detach().clone());
      parameter_gate::add(storage, miser, number);
      miser->release(number);
    }
    for (const auto& parameter : parameters) parameter_gate::set_gated(parameter, true);
    return miser;
  }
  ~Miser() override { end(); }

  /// Gives all parameters their memory.
  void end() {
    for (std::size_t i = 0; i < storages_.size(); ++i) {
      give(i);
      parameter_gate::remove(storages_[i].unsafeGetStorageImpl());
    }
  }

  void provide(c10::ArrayRef<std::size_t> numbers, c10::ArrayRef<std::size_t> changed) override {
    ++num_trips;
    num_changes += static_cast<int64_t>(changed.size());
    for (std::size_t i = 0; i < storages_.size(); ++i) release(i);
    for (const std::size_t number : numbers) give(number);
  }
  void take_changes(std::size_t number) override {
    std::memcpy(data_[number].mutable_data_ptr(), storages_[number].data(), data_[number].nbytes());
  }

  void drop_changes(std::size_t) noexcept override { ++num_failures; }

  int64_t num_failures = 0;
  int64_t num_trips = 0;
  int64_t num_changes = 0;

 private:
  void release(std::size_t number) {
    auto* storage = storages_[number].unsafeGetStorageImpl();
    storage->set_data_ptr_noswap(storage->allocator()->allocate(0));
    storage->set_nbytes(std::size_t{0});
  }
  void give(std::size_t number) {
    auto* storage = storages_[number].unsafeGetStorageImpl();
    const std::size_t bytes = data_[number].nbytes();
    storage->set_data_ptr_noswap(storage->allocator()->allocate(bytes));
    storage->set_nbytes(bytes);
    std::memcpy(storage->mutable_data(), data_[number].const_data_ptr(), bytes);
  }

  std::vector<c10::Storage> storages_;
  std::vector<torch::Tensor> data_;
};

struct Result {
  torch::Tensor loss;
  std::vector<torch::Tensor> gradients;
};

Result run(const std::vector<torch::Tensor>& parameters,
           const std::function<torch::Tensor()>& compute) {
  for (const auto& parameter : parameters) parameter.mutable_grad().reset();
  torch::manual_seed(3);
  Result result{.loss = compute(), .gradients = {}};
  result.loss.backward();
  for (const auto& parameter : parameters) result.gradients.push_back(parameter.grad());
  return result;
}

/// Compares a forward and a backward pass with those of parameters whose memory is there only while
/// an operation uses it.
void expect_same_numbers(const std::vector<torch::Tensor>& parameters,
                         const std::function<torch::Tensor()>& compute) {
  const Result expected = run(parameters, compute);
  const auto miser = Miser::of(parameters);
  const Result result = run(parameters, compute);
  EXPECT_GT(miser->num_trips, 0);
  EXPECT_TRUE(torch::equal(result.loss, expected.loss));
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    ASSERT_EQ(result.gradients[i].defined(), expected.gradients[i].defined()) << i;
    if (!expected.gradients[i].defined()) continue;
    EXPECT_TRUE(torch::equal(result.gradients[i], expected.gradients[i])) << i;
  }
  miser->end();
  for (const auto& parameter : parameters) parameter_gate::set_gated(parameter, false);
}

TEST(ParameterGateTest, AResidualNetOfConvolutionsComputesTheSame) {
  torch::manual_seed(1);
  torch::nn::Conv2d first(torch::nn::Conv2dOptions(3, 8, 3).padding(1).bias(false));
  torch::nn::Conv2d second(torch::nn::Conv2dOptions(8, 8, 3).padding(1).groups(2));
  torch::nn::BatchNorm2d norm(8);
  torch::nn::ConvTranspose2d last(torch::nn::ConvTranspose2dOptions(8, 4, 2).stride(2));
  const torch::nn::Sequential all(first, second, norm, last);
  const auto input = torch::randn({2, 3, 8, 8});
  for (const bool is_channels_last : {false, true}) {
    if (is_channels_last)
      first->weight.set_data(first->weight.contiguous(at::MemoryFormat::ChannelsLast));
    norm->reset_running_stats();
    expect_same_numbers(all->parameters(), [&] {
      const auto hidden = first->forward(input).relu();
      return last->forward(hidden + norm->forward(second->forward(hidden))).square().mean();
    });
  }
}

TEST(ParameterGateTest, RecurrentLayersComputeTheSame) {
  torch::manual_seed(1);
  torch::nn::LSTM lstm(torch::nn::LSTMOptions(5, 7).num_layers(2).bidirectional(true));
  torch::nn::GRUCell cell(14, 7);
  auto parameters = lstm->parameters();
  const auto of_cell = cell->parameters();
  parameters.insert(parameters.end(), of_cell.begin(), of_cell.end());
  const auto input = torch::randn({6, 3, 5});
  expect_same_numbers(parameters, [&] {
    const auto hidden = std::get<0>(lstm->forward(input));
    return cell->forward(hidden[5]).square().mean();
  });
}

TEST(ParameterGateTest, AttentionAndTiedEmbeddingsComputeTheSame) {
  torch::manual_seed(1);
  torch::nn::Embedding embedding(11, 16);
  torch::nn::TransformerEncoderLayer layer(
      torch::nn::TransformerEncoderLayerOptions(16, 4).dim_feedforward(24));
  auto parameters = layer->parameters();
  parameters.push_back(embedding->weight);
  const auto tokens = torch::randint(11, {5, 2}, torch::kLong);
  for (const bool is_checkpointed : {false, true}) {
    expect_same_numbers(parameters, [&] {
      auto hidden = embedding->forward(tokens);
      const auto forward = [&](const torch::Tensor& x) { return layer->forward(x); };
      hidden = is_checkpointed ? linkboy::checkpoint(forward, hidden) : forward(hidden);
      return hidden.matmul(embedding->weight.t()).square().mean();
    });
  }
}

TEST(ParameterGateTest, AutocastHooksAndSparseGradientsComputeTheSame) {
  torch::manual_seed(1);
  torch::nn::Embedding embedding(torch::nn::EmbeddingOptions(11, 16).sparse(true));
  torch::nn::Linear linear(16, 8);
  std::vector<torch::Tensor> parameters{linear->weight, linear->bias};
  linear->weight.register_hook([](const torch::Tensor& gradient) { return gradient * 2; });
  const auto tokens = torch::randint(11, {5}, torch::kLong);
  expect_same_numbers(parameters, [&] {
    const AutocastScope bf16(torch::kCPU, torch::kBFloat16);
    const auto penalty = linear->weight.abs().sum();
    return linear->forward(embedding->forward(tokens)).to(torch::kFloat).square().mean() + penalty;
  });
}

TEST(ParameterGateTest, TorchScriptComputesTheSame) {
  torch::jit::Module script("script");
  torch::manual_seed(1);
  script.register_parameter("weight", torch::randn({4, 4}).requires_grad_(), /*is_buffer=*/false);
  script.define(R"(
    def forward(self, x):
        for i in range(3):
            x = torch.tanh(torch.matmul(x, self.weight))
        return x.mean()
  )");
  const auto input = torch::randn({2, 4});
  expect_same_numbers({script.attr("weight").toTensor()},
                      [&] { return script.forward({input}).toTensor(); });
}

TEST(ParameterGateTest, ListsOfTensorsAndIndicesAreSeen) {
  torch::manual_seed(1);
  const auto a = torch::randn({3, 2}).requires_grad_();
  const auto b = torch::randn({3, 2}).requires_grad_();
  expect_same_numbers({a, b}, [&] {
    const auto rows = torch::tensor({0, 2, 2});
    return torch::cat({a, b}).index({rows}).sum() + torch::stack({b, a}).square().sum() +
           at::_foreach_mul({a, b}, 2.0)[1].sum();
  });
}

TEST(ParameterGateTest, ChangesAreTaken) {
  const torch::NoGradGuard no_grad;
  const auto parameter = torch::ones({2, 2});
  const auto miser = Miser::of({parameter});
  parameter.mul_(3);
  parameter.t()[0][1].add_(4);
  torch::nn::init::constant_(parameter.narrow(0, 0, 1), 7);
  EXPECT_EQ(miser->num_changes, 3);
  EXPECT_TRUE(torch::equal(parameter.clone(), torch::tensor({{7.0, 7.0}, {7.0, 3.0}})));
}

TEST(ParameterGateTest, AChangeThatFailsIsReported) {
  const torch::NoGradGuard no_grad;
  const auto parameter = torch::ones({2, 2});
  const auto miser = Miser::of({parameter});
  EXPECT_ANY_THROW(parameter.copy_(torch::ones({3, 5})));
  EXPECT_EQ(miser->num_failures, 1);
}

TEST(ParameterGateTest, MemoryCannotBeReadPastIt) {
  const auto parameter = torch::ones({2, 2});
  const auto miser = Miser::of({parameter});
  EXPECT_ANY_THROW(parameter.const_data_ptr<float>());
}

TEST(SkipInitTest, RandomValuesAreNotWritten) {
  torch::NoGradGuard no_grad;
  auto tensor = torch::zeros({1000});
  {
    const SkipInit skip;
    const SkipInit inner;
    tensor.uniform_().normal_();
    torch::nn::init::kaiming_uniform_(tensor.view({10, 100}));
    EXPECT_TRUE(torch::equal(tensor, torch::zeros({1000})));
    torch::nn::Linear linear(3, 4);
    EXPECT_EQ(linear->forward(torch::ones({2, 3})).size(1), 4);
    tensor.fill_(2);
    EXPECT_EQ(torch::ones({2}).sum().item<double>(), 2);
  }
  EXPECT_EQ(tensor[5].item<double>(), 2);
  tensor.uniform_();
  EXPECT_NE(tensor[5].item<double>(), 2);
}

TEST(ParameterGateTest, OtherTensorsDoNotPassIt) {
  const auto parameter = torch::ones({2, 2});
  const auto miser = Miser::of({parameter});
  const auto sum = parameter + 1;
  const auto num_trips = miser->num_trips;
  static_cast<void>(sum.mm(sum).t().add_(sum));
  EXPECT_EQ(miser->num_trips, num_trips);
  EXPECT_FALSE(parameter_gate::is_gated(sum));
  EXPECT_TRUE(parameter_gate::is_gated(parameter.t()));
  const auto pause = parameter_gate::pause();
  static_cast<void>(parameter.t());
  EXPECT_EQ(miser->num_trips, num_trips + 1);
}

}  // namespace
}  // namespace linkboy::testing::parameter_gate_test
