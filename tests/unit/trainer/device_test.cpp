// Training on CUDA devices, compared with the CPU.

#include <ATen/DeviceAccelerator.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <atomic>
#include <filesystem>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "checkpoint/background_job.hpp"
#include "linkboy/checkpoint/checkpoint.hpp"
#include "linkboy/checkpoint/training_state_folders.hpp"
#include "linkboy/memory/memory_use.hpp"
#include "linkboy/run/optimizers.hpp"
#include "linkboy/trainer.hpp"
#include "support/at_update.hpp"
#include "support/expect_error.hpp"
#include "support/temporary_folder.hpp"
#include "support/toy.hpp"

namespace linkboy::testing::device_test {
namespace {

std::vector<torch::Tensor> train(Toy& toy, ExecutionMode mode) {
  torch::manual_seed(4);  // for the shuffling
  toy.train({.train_dataset = toy_data(64),
             .per_device_batch_size = 4,
             .num_epochs = 2,
             .execution_mode = mode});
  return toy.model->parameters();
}

void expect_close(const std::vector<torch::Tensor>& weights,
                  const std::vector<torch::Tensor>& expected) {
  ASSERT_EQ(weights.size(), expected.size());
  for (std::size_t i = 0; i < weights.size(); ++i) {
    EXPECT_TRUE(torch::allclose(weights[i].cpu(), expected[i], 1e-4, 1e-5)) << "tensor " << i;
  }
}

void expect_the_weights_of_the_cpu(const std::string& device, ExecutionMode mode) {
  Toy on_cpu({}, 0.1, {.device = "cpu"});
  Toy on_device({}, 0.1, {.device = device});
  const auto expected = train(on_cpu, mode);
  expect_close(train(on_device, mode), expected);
  EXPECT_NEAR(on_device.values("train_loss_epoch").back(), on_cpu.values("train_loss_epoch").back(),
              1e-4);
}

TEST(DeviceTest, EagerTrainingGivesTheSameWeightsAsTheCpu_CUDA) {
  expect_the_weights_of_the_cpu("cuda:0", ExecutionMode::eager);
}

TEST(DeviceTest, GraphTrainingGivesTheSameWeightsAsTheCpu_CUDA) {
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
  EXPECT_EQ(peak_of_first(), before) << "the other device is not used";
}

TEST(DeviceTest, ASnapshotPinsOnlyStoragesUpToItsLimit_CUDA) {
  const auto values = torch::arange(9, torch::TensorOptions(torch::kCUDA).dtype(torch::kFloat));
  const StateDict source{{"small", values.narrow(0, 0, 4).clone()}, {"large", values}};
  Snapshot snapshot(16);
  const StateDict copy = snapshot.take(source);
  snapshot.wait();
  EXPECT_TRUE(copy.get_tensor("small").is_pinned());
  EXPECT_FALSE(copy.get_tensor("large").is_pinned());
  for (const auto& [name, tensor] : source.entries()) {
    EXPECT_TRUE(torch::equal(copy.get_tensor(name), tensor.toTensor().cpu())) << name;
  }
}

TEST(DeviceTest, AnAsynchronousSaveContainsTheWeightsOfItsUpdate_CUDA) {
  const TemporaryFolder folder;
  std::vector<torch::Tensor> weights;
  Toy toy({}, 0.1, {.device = "cuda:0"});
  toy.trainer.callback_handler().add(std::make_shared<AtUpdate>(3, [&](Trainer& trainer) {
    // Keeps the device busy, so that it computes the weights long after the background thread
    // starts to save them.
    const auto large = torch::ones({1500, 1500}, torch::kCUDA);
    large.mm(large);
    trainer.save_training_state(folder.path(), {.asynchronous = true});
    weights = copies_of(trainer.model().parameters());
  }));
  train(toy, ExecutionMode::eager);
  toy.trainer.wait_for_saves();
  const StateDict saved =
      read_checkpoint(folder.path() / kTrainingStateFile).get_dict("model_state_dict");
  std::vector<torch::Tensor> saved_weights;
  for (const auto& [name, tensor] : saved.entries()) saved_weights.push_back(tensor.toTensor());
  EXPECT_TRUE(bit_equal(saved_weights, weights));
}

/// Trains one epoch in channels-last memory, from the checkpoint `from` if there is one, and
/// returns the weights.
std::vector<torch::Tensor> train_conv_net(const std::string& device, const std::string& optimizer,
                                          const std::filesystem::path& from,
                                          const std::filesystem::path& to) {
  TextSettings settings{{"lr", "0.01"}};
  if (optimizer == "sgd") settings.push_back({"momentum", "0.9"});
  torch::manual_seed(5);
  torch::nn::Sequential model(torch::nn::Conv2d(2, 4, 3), torch::nn::Flatten(),
                              torch::nn::Linear(64, 3));
  QuietTrainer trainer(
      model, torch::nn::CrossEntropyLoss(),
      make_optimizer_fn(optimizer, settings)(model->parameters()),
      {.default_callbacks = {}, .accelerator = {.device = device, .channels_last = true}});
  if (!from.empty()) trainer.load_checkpoint(from);
  const auto images = torch::sin(torch::arange(32 * 72, torch::kFloat) * 0.7).view({32, 2, 6, 6});
  trainer.train({.train_dataset = TensorDataset(images, torch::arange(32) * 7 % 3),
                 .per_device_batch_size = 4,
                 .num_epochs = 1});
  if (!to.empty()) trainer.save_checkpoint(to);
  return model->parameters();
}

TEST(DeviceTest, EveryOptimizerContinuesACheckpointOfTheCpu_CUDA) {
  const TemporaryFolder folder;
  for (const std::string& optimizer : optimizer_names()) {
    if (optimizer == "lbfgs") continue;  // its many iterations amplify rounding
    SCOPED_TRACE(optimizer);
    const auto checkpoint = folder / (optimizer + ".pt");
    train_conv_net("cpu", optimizer, "", checkpoint);
    const auto expected = train_conv_net("cpu", optimizer, checkpoint, "");
    expect_close(train_conv_net("cuda:0", optimizer, checkpoint, ""), expected);
  }
}

TEST(DeviceTest, NewTensorsAreCreatedOnTheDeviceOfTheTrainer_MultiCUDA) {
  const auto first = at::accelerator::getDeviceIndex();
  const auto on_device = [] { return torch::zeros({1}, torch::kCUDA); };
  const auto loss = [&](const torch::Tensor& output, const torch::Tensor& target) {
    return torch::nn::functional::cross_entropy(output, target) + on_device().sum();
  };
  auto model = toy_model();
  QuietTrainer trainer(model, loss, toy_sgd(model),
                       {.default_callbacks = {}, .accelerator = {.device = "cuda:1"}});
  std::atomic<int> num_elsewhere = 0;
  const Transform transform = [&](Batch batch, const TransformContext&) {
    if (on_device().device().index() != 1) ++num_elsewhere;
    return batch;
  };
  TrainOptions options{.train_dataset = toy_data(16), .per_device_batch_size = 4, .num_epochs = 1};
  options.train_dataloader_options = {.num_workers = 2, .transform = transform};
  EXPECT_EQ(trainer.train(options).num_updates, 4);
  EXPECT_EQ(num_elsewhere, 0);
  EXPECT_EQ(at::accelerator::getDeviceIndex(), 1);
  at::accelerator::setDeviceIndex(first);
}

/// Trains one epoch on the first device.
int64_t train_on_cuda(const Model& model, LossFunction loss, const TensorDataset& data,
                      int64_t batch_size, ExecutionMode mode) {
  QuietTrainer trainer(
      model, std::move(loss),
      std::make_shared<torch::optim::SGD>(model.parameters(), torch::optim::SGDOptions(0.1)),
      {.default_callbacks = {}, .accelerator = {.device = "cuda:0"}});
  return trainer
      .train({.train_dataset = data,
              .per_device_batch_size = batch_size,
              .num_epochs = 1,
              .execution_mode = mode})
      .num_updates;
}

/// If `looks` is true, reads a number from the device in each forward pass.
struct LookingNet : torch::nn::Module {
  torch::Tensor forward(const torch::Tensor& x) {
    auto y = torch::dropout(layer->forward(x), 0.1, is_training());
    if (looks && y.sum().item<float>() > 1e9) y = y * 2;
    return y;
  }
  torch::nn::Linear layer = register_module("layer", torch::nn::Linear(4, 3));
  bool looks = false;
};

TEST(DeviceTest, AFailedRecordingLeavesTheDeviceUsable_CUDA) {
  const auto net = std::make_shared<LookingNet>();
  const auto train = [&](ExecutionMode mode, bool looks) {
    net->looks = looks;
    return train_on_cuda(net, torch::nn::CrossEntropyLoss(), toy_data(32), 4, mode);
  };
  EXPECT_ERROR(train(ExecutionMode::graph, true), "cannot be recorded as a CUDA graph");
  EXPECT_EQ(train(ExecutionMode::eager, true), 8);
  EXPECT_EQ(train(ExecutionMode::graph, false), 8);
}

TEST(DeviceTest, ALossThatThrowsInAWarmUpLeavesNoWorkBehind_CUDA) {
  // The matrices are large enough for the kernels to be still running when the next run starts.
  const torch::nn::Linear model(64, 64);
  int num_calls = 0;
  const auto loss = [&](const torch::Tensor& output, const torch::Tensor& target) {
    TORCH_CHECK(++num_calls != 2, "enough");
    return torch::nn::functional::cross_entropy(output, target);
  };
  const TensorDataset data(torch::ones({256, 64}), torch::arange(256) % 64);
  EXPECT_THROW(train_on_cuda(model, loss, data, 64, ExecutionMode::graph), c10::Error);
  train_on_cuda(model, loss, data, 64, ExecutionMode::eager);
  for (const auto& parameter : model->parameters()) {
    EXPECT_TRUE(parameter.isfinite().all().item<bool>());
  }
}

}  // namespace
}  // namespace linkboy::testing::device_test
