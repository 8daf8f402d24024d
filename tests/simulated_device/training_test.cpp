// Tests of linkboy on a device other than CUDA: the features that work, and those that are refused.

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <algorithm>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "linkboy/callbacks/memory_monitor.hpp"
#include "linkboy/checkpoint/training_state_folders.hpp"
#include "linkboy/fine_tuning/batch_size_finder.hpp"
#include "linkboy/memory/activation_checkpoint.hpp"
#include "linkboy/memory/memory_use.hpp"
#include "linkboy/schedulers/curves.hpp"
#include "linkboy/trainer.hpp"
#include "simulated_device/interface.hpp"
#include "support/at_update.hpp"
#include "support/environment_variable.hpp"
#include "support/expect_error.hpp"
#include "support/file_contents.hpp"
#include "support/keep_losses.hpp"
#include "support/temporary_folder.hpp"
#include "support/toy.hpp"

namespace linkboy::simulated_device {
namespace {

using namespace linkboy::testing;  // NOLINT(google-build-using-namespace)

using Optimizer = std::shared_ptr<torch::optim::Optimizer>;
using OptimizerMaker = std::function<Optimizer(const torch::nn::Sequential&)>;

constexpr int64_t kEpochs = 4;

Optimizer adamw_of(const torch::nn::Sequential& model) {
  return std::make_shared<torch::optim::AdamW>(model->parameters(),
                                               torch::optim::AdamWOptions(0.01));
}

/// Uses its own step on all devices. linkboy fuses the steps of LibTorch's classes, but only on the
/// CPU and on CUDA.
struct OwnSgd : torch::optim::SGD {
  using SGD::SGD;
};

Optimizer own_sgd_of(const torch::nn::Sequential& model) {
  return std::make_shared<OwnSgd>(model->parameters(),
                                  torch::optim::SGDOptions(0.02).momentum(0.9));
}

struct Result {
  std::vector<torch::Tensor> weights;  // on the CPU
  std::vector<float> losses;
};

Result train_on(const std::string& device, Precision precision = Precision::fp32,
                const OptimizerMaker& make_optimizer = own_sgd_of) {
  torch::manual_seed(4);  // for the shuffling
  const auto model = toy_model();
  const auto keep_losses = std::make_shared<KeepLosses>();
  QuietTrainer trainer(model, torch::nn::CrossEntropyLoss(), make_optimizer(model),
                       {.callbacks = {keep_losses},
                        .default_callbacks = {},
                        .accelerator = {.device = device, .precision = precision}});
  trainer.train({.train_dataset = toy_data(64),
                 .per_device_batch_size = 4,
                 .num_epochs = kEpochs,
                 .gradient_clip_norm = 1.0});
  Result result{.weights = {}, .losses = keep_losses->losses};
  for (const auto& parameter : model->parameters()) {
    result.weights.push_back(parameter.detach().cpu());
  }
  return result;
}

double mean_loss(const Result& result, int64_t epoch) {
  return torch::tensor(result.losses).view({kEpochs, -1})[epoch].mean().item<double>();
}

TEST(TrainingTest, AutoSelectsTheDevice) {
  EXPECT_EQ(Accelerator().device(), c10::Device(kType, 0));
  EXPECT_EQ(Accelerator({.device = "simulated:1"}).device(), c10::Device(kType, 1));
  EXPECT_EQ(Accelerator({.device = "cpu"}).device(), torch::kCPU);
}

TEST(TrainingTest, RefusesUnknownDevicesAndListsTheAvailableOnes) {
  EXPECT_ERROR(Accelerator({.device = "cuda"}),
               "it must be auto, cpu, simulated or simulated:INDEX");
  EXPECT_ERROR(Accelerator({.device = "simulated:2"}), "but there are 2 SIMULATED devices here");
}

TEST(TrainingTest, WeightsAndLossesAreBitIdenticalToTheCpu) {
  const Result expected = train_on("cpu");
  const Result result = train_on("simulated");
  EXPECT_LT(mean_loss(expected, kEpochs - 1), mean_loss(expected, 0));
  EXPECT_TRUE(bit_equal(result.weights, expected.weights));
  EXPECT_EQ(result.losses, expected.losses);
}

TEST(TrainingTest, TrainsOnTheSecondDeviceWithoutUsingTheFirst) {
  const Result expected = train_on("simulated:0");
  auto* allocator = c10::getDeviceAllocator(kType);
  allocator->resetPeakStats(0);
  const auto peak = [&] { return allocator->getDeviceStats(0).allocated_bytes[0].peak; };
  const int64_t before = peak();
  EXPECT_TRUE(bit_equal(train_on("simulated:1").weights, expected.weights));
  EXPECT_EQ(peak(), before);
  EXPECT_EQ(current_device(), 1);
  Accelerator({.device = "simulated:0"});  // makes the first device current again
}

TEST(TrainingTest, OptimizersFusedOnTheCpuTrainAlike) {
  const auto sgd_of = [](const auto& model) { return toy_sgd(model, 0.02); };
  for (const auto& make_optimizer : {OptimizerMaker(sgd_of), OptimizerMaker(adamw_of)}) {
    const Result expected = train_on("cpu", Precision::fp32, make_optimizer);
    const Result result = train_on("simulated", Precision::fp32, make_optimizer);
    for (std::size_t i = 0; i < result.weights.size(); ++i) {
      EXPECT_TRUE(torch::allclose(result.weights[i], expected.weights[i], 1e-5, 1e-6)) << i;
    }
  }
}

TEST(TrainingTest, HalfPrecisionTrains) {
  const Result full = train_on("simulated");
  for (const Precision precision : {Precision::bf16, Precision::fp16}) {
    SCOPED_TRACE(to_text(precision));
    const Result half = train_on("simulated", precision);
    EXPECT_LT(mean_loss(half, kEpochs - 1), mean_loss(half, 0));
    EXPECT_NEAR(mean_loss(half, kEpochs - 1), mean_loss(full, kEpochs - 1), 0.02);
    EXPECT_FALSE(bit_equal(half.weights, full.weights)) << "autocast had no effect";
  }
}

// The cost of an update

constexpr int64_t kUpdatesPerEpoch = 12;

class CountUpdates : public Callback {
 public:
  void on_train_update_end(Trainer&) override {
    // Counts the second epoch without its first two and last two updates.
    if (++num_updates_ == kUpdatesPerEpoch + 2) begin = machine().counts();
    if (num_updates_ == 2 * kUpdatesPerEpoch - 2) end = machine().counts();
  }

  Counts begin;
  Counts end;

 private:
  int64_t num_updates_ = 0;
};

TEST(TrainingTest, AnUpdateCopiesTheNextBatchConcurrentlyWithoutWaiting) {
  constexpr int64_t kUpdates = kUpdatesPerEpoch - 4;
  constexpr int64_t kTensors = 2;  // per batch
  for (const Precision precision : {Precision::fp32, Precision::bf16}) {
    SCOPED_TRACE(to_text(precision));
    const auto model = toy_model();
    const auto costs = std::make_shared<CountUpdates>();
    QuietTrainer trainer(
        model, torch::nn::CrossEntropyLoss(), adamw_of(model),
        {.callbacks = {costs}, .accelerator = {.device = "simulated", .precision = precision}});
    trainer.train({.train_dataset = toy_data(4 * kUpdatesPerEpoch),
                   .per_device_batch_size = 4,
                   .num_epochs = 2,
                   .gradient_clip_norm = 1.0});
    const auto count = [&](int64_t Counts::*what) { return costs->end.*what - costs->begin.*what; };
    EXPECT_EQ(count(&Counts::host_to_device), kTensors * kUpdates);
    EXPECT_EQ(count(&Counts::overlapping_host_to_device), kTensors * kUpdates);
    EXPECT_EQ(count(&Counts::pageable), 0);
    EXPECT_EQ(count(&Counts::device_to_host), 0);
    EXPECT_EQ(count(&Counts::stream_waits), 0);
    EXPECT_EQ(count(&Counts::event_waits), 0);
    EXPECT_EQ(count(&Counts::device_waits), 0);
  }
}

// Training states

/// A run with every part that has a state: dropout, batch norm, shuffling and a cosine schedule.
struct Rehearsal {
  explicit Rehearsal(int64_t last_update) {
    torch::manual_seed(3);
    namespace nn = torch::nn;
    nn::Sequential model(nn::Linear(4, 8), nn::BatchNorm1d(8), nn::Dropout(0.5), nn::Linear(8, 3));
    trainer = std::make_unique<QuietTrainer>(
        model, nn::CrossEntropyLoss(), adamw_of(model),
        TrainerOptions{.callbacks = {stop_at(last_update)},
                       .default_callbacks = {},
                       .accelerator = {.device = "simulated",
                                       .precision = Precision::fp16,
                                       .grad_scaler = {.init_scale = 64.0}}});
    options = {.train_dataset = toy_data(16),
               .per_device_batch_size = 4,
               .num_epochs = 3,
               .create_scheduler_fn = cosine()};
  }

  std::unique_ptr<QuietTrainer> trainer;
  TrainOptions options;
};

TEST(TrainingTest, AResumedRunIsBitIdenticalToTheUninterruptedOne) {
  const TemporaryFolder folder;
  Rehearsal whole(100);
  whole.trainer->train(whole.options);
  ASSERT_EQ(whole.trainer->num_updates(), 12);
  whole.trainer->save_training_state(folder / "whole");
  for (const int64_t k : {1, 4, 7}) {
    SCOPED_TRACE(k);
    Rehearsal first(k);
    EXPECT_EQ(first.trainer->train(first.options).num_updates, k);
    first.trainer->save_training_state(folder / "stopped", {.asynchronous = true});
    first.trainer->wait_for_saves();
    Rehearsal second(100);
    torch::manual_seed(99);  // random numbers of the process must not matter
    second.options.resume_from = folder / "stopped";
    EXPECT_EQ(second.trainer->train(second.options).num_updates, 12);
    second.trainer->save_training_state(folder / "resumed");
    EXPECT_EQ(read_bytes(folder / "resumed" / kTrainingStateFile),
              read_bytes(folder / "whole" / kTrainingStateFile));
  }
}

// Recomputation

TEST(TrainingTest, ARecomputationUsesTheRandomNumbersAndPrecisionOfTheForward) {
  torch::nn::Sequential mlp(torch::nn::Linear(8, 8), torch::nn::Dropout(0.5), torch::nn::Tanh());
  mlp->to(kType);
  const auto input = torch::ones({5, 8}, kType);
  const auto gradients = [&](const auto& network) {
    torch::manual_seed(7);
    mlp->zero_grad();
    at::Tensor loss;
    {
      const AutocastScope bf16 = Accelerator({.precision = Precision::bf16}).autocast();
      loss = network().sum();
    }
    loss.backward();
    return copies_of({mlp[0]->as<torch::nn::Linear>()->weight.grad()});
  };
  const auto plain = gradients([&] { return mlp->forward(input); });
  EXPECT_TRUE(bit_equal(gradients([&] { return checkpoint(mlp, input); }), plain));
}

// Memory

/// Allocates memory in the first epoch and frees it immediately.
class AllocateInFirstEpoch : public Callback {
 public:
  void on_train_epoch_start(Trainer& trainer) override {
    if (trainer.run_history().current_epoch() > 1) return;
    torch::empty({32 * 1024 * 1024},
                 at::TensorOptions(trainer.accelerator().device()).dtype(at::kByte));
  }
};

TEST(TrainingTest, MemoryMonitorRecordsThePeakOfEachEpoch) {
  Toy toy({std::make_shared<MemoryMonitor>(), std::make_shared<AllocateInFirstEpoch>()}, 0.1,
          {.device = "simulated"});
  const c10::Device device = toy.trainer.accelerator().device();
  empty_device_cache(device);
  toy.train({.num_epochs = 2});
  const auto peak = toy.values("cuda_peak_mib");
  ASSERT_EQ(peak.size(), 2);
  EXPECT_GE(peak[0] - peak[1], 31.0);
  EXPECT_GT(peak[1], 0.0);
  EXPECT_GE(device_peak(device)->reserved_mib, 32.0) << "freed memory is kept";
  empty_device_cache(device);
  reset_device_peak(device);
  EXPECT_LT(device_peak(device)->reserved_mib, 31.0);
}

TEST(TrainingTest, TheBatchSizeFinderReturnsTheLargestSizeThatFits) {
  constexpr int64_t kWidth = 4096;
  constexpr int64_t kRows = 8192;  // their scores alone need all memory of the device
  Toy toy({}, 0.1, {.device = "simulated"}, torch::nn::Sequential(torch::nn::Linear(2, kWidth)));
  TrainOptions options{
      .train_dataset = TensorDataset(torch::ones({kRows, 2}), torch::arange(kRows) % kWidth),
      .num_epochs = 1};
  const auto result = find_batch_size(toy.trainer, options, {.min_batch_size = 256});
  EXPECT_GE(result.largest, 256);
  EXPECT_LT(result.largest, kRows);
  EXPECT_TRUE(std::any_of(result.trials.begin(), result.trials.end(),
                          [](const BatchSizeTrial& trial) { return !trial.fits; }));
  options.per_device_batch_size = result.largest;
  options.max_num_updates = 2;
  EXPECT_EQ(toy.train(options).num_updates, 2);
}

// Features that only CUDA supports

TEST(TrainingTest, GraphModeIsRefused) {
  Toy toy({}, 0.1, {.device = "simulated"});
  EXPECT_ERROR(toy.train({.execution_mode = ExecutionMode::graph}),
               "ExecutionMode::graph records CUDA graphs, but the device is simulated:0");
  EXPECT_EQ(toy.train().num_updates, 1);
}

TEST(TrainingTest, SeveralProcessesAreRefused) {
  const EnvironmentVariable rank("RANK", "0");
  const EnvironmentVariable local_rank("LOCAL_RANK", "0");
  const EnvironmentVariable world_size("WORLD_SIZE", "2");
  const EnvironmentVariable local_world_size("LOCAL_WORLD_SIZE", "2");
  const EnvironmentVariable address("MASTER_ADDR", "localhost");
  const EnvironmentVariable port("MASTER_PORT", "1");
  EXPECT_ERROR(Accelerator({.device = "simulated"}),
               "there are 2 processes, but the device is simulated:0");
  EXPECT_ERROR(Accelerator({.device = "simulated", .distributed = {.backend = Backend::nccl}}),
               "nccl");
}

}  // namespace
}  // namespace linkboy::simulated_device
