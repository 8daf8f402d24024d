// Training on CUDA devices, compared with the CPU.

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "linkboy/memory_use.hpp"
#include "linkboy/trainer.hpp"
#include "support/expect_error.hpp"
#include "support/toy.hpp"

namespace linkboy::testing::device_test {
namespace {

struct DeviceRun {
  explicit DeviceRun(const std::string& device)
      : trainer(model, torch::nn::CrossEntropyLoss(), toy_sgd(model), {}, nullptr,
                {.device = device}) {}

  std::vector<torch::Tensor> train(ExecutionMode mode) {
    torch::manual_seed(4);  // of the shuffling
    trainer.train({.train_dataset = toy_data(64),
                   .num_epochs = 2,
                   .per_device_batch_size = 4,
                   .execution_mode = mode});
    std::vector<torch::Tensor> weights;
    for (const auto& parameter : model->parameters()) weights.push_back(parameter.detach().cpu());
    return weights;
  }

  torch::nn::Sequential model = toy_model();
  QuietTrainer trainer;
};

void expect_the_weights_of_the_cpu(const std::string& device, ExecutionMode mode) {
  DeviceRun on_cpu("cpu");
  DeviceRun on_device(device);
  const auto expected = on_cpu.train(mode);
  const auto weights = on_device.train(mode);
  ASSERT_EQ(weights.size(), expected.size());
  for (std::size_t i = 0; i < weights.size(); ++i) {
    EXPECT_TRUE(torch::allclose(weights[i], expected[i], 1e-4, 1e-5)) << "tensor " << i;
  }
  const auto loss_of = [](DeviceRun& run) {
    return run.trainer.run_history().get_metric_values("train_loss_epoch").back();
  };
  EXPECT_NEAR(loss_of(on_device), loss_of(on_cpu), 1e-4);
}

TEST(DeviceTest, EagerTrainingGivesTheWeightsOfTheCpu_CUDA) {
  expect_the_weights_of_the_cpu("cuda:0", ExecutionMode::eager);
}

TEST(DeviceTest, GraphTrainingGivesTheWeightsOfTheCpu_CUDA) {
  expect_the_weights_of_the_cpu("cuda:0", ExecutionMode::graph);
}

TEST(DeviceTest, TrainsOnADeviceThatIsNotTheCurrentOne_MultiCUDA) {
  const auto peak_of_first = [] {
    const auto peak = device_peak(c10::Device("cuda:0"));
    return peak ? peak->allocated_mib : 0.0;
  };
  reset_device_peak(c10::Device("cuda:0"));
  const double before = peak_of_first();
  expect_the_weights_of_the_cpu("cuda:1", ExecutionMode::eager);
  expect_the_weights_of_the_cpu("cuda:1", ExecutionMode::graph);
  EXPECT_EQ(peak_of_first(), before) << "of the other device";
}

/// Looks at a number of the device in each forward pass, if it is told to.
struct LookingNet : torch::nn::Module {
  torch::Tensor forward(const torch::Tensor& x) {
    auto y = torch::dropout(layer->forward(x), 0.1, is_training());
    if (looks && y.sum().item<float>() > 1e9) y = y * 2;
    return y;
  }
  torch::nn::Linear layer = register_module("layer", torch::nn::Linear(4, 3));
  bool looks = false;
};

TEST(DeviceTest, AGraphThatCannotBeRecordedLeavesTheDeviceUsable_CUDA) {
  const auto net = std::make_shared<LookingNet>();
  const auto train = [&](ExecutionMode mode, bool looks) {
    net->looks = looks;
    auto optimizer =
        std::make_shared<torch::optim::SGD>(net->parameters(), torch::optim::SGDOptions(0.1));
    QuietTrainer trainer(net, torch::nn::CrossEntropyLoss(), optimizer, {}, nullptr,
                         {.device = "cuda:0"});
    trainer.train({.train_dataset = toy_data(32),
                   .num_epochs = 1,
                   .per_device_batch_size = 4,
                   .execution_mode = mode});
    EXPECT_EQ(trainer.num_updates(), 8);
  };
  EXPECT_ERROR(train(ExecutionMode::graph, true), "cannot be recorded as a CUDA graph");
  train(ExecutionMode::eager, true);
  train(ExecutionMode::graph, false);
}

TEST(DeviceTest, ALossThatThrowsInAWarmUpLeavesNoWorkBehind_CUDA) {
  // Its matrices are large enough for the kernels to be still at work when the next run begins.
  torch::nn::Sequential model(torch::nn::Linear(64, 64));
  int num_calls = 0;
  const auto loss = [&](const torch::Tensor& output, const torch::Tensor& target) {
    TORCH_CHECK(++num_calls != 2, "enough");
    return torch::nn::functional::cross_entropy(output, target);
  };
  const auto train = [&](ExecutionMode mode) {
    auto optimizer =
        std::make_shared<torch::optim::SGD>(model->parameters(), torch::optim::SGDOptions(0.1));
    QuietTrainer trainer(model, loss, optimizer, {}, nullptr, {.device = "cuda:0"});
    trainer.train({.train_dataset = TensorDataset(torch::ones({256, 64}), torch::arange(256) % 64),
                   .num_epochs = 1,
                   .per_device_batch_size = 64,
                   .execution_mode = mode});
  };
  EXPECT_THROW(train(ExecutionMode::graph), c10::Error);
  train(ExecutionMode::eager);
  for (const auto& parameter : model->parameters()) {
    EXPECT_TRUE(parameter.isfinite().all().item<bool>());
  }
}

}  // namespace
}  // namespace linkboy::testing::device_test
