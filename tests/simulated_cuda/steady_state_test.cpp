// Tests of the cost of an update after the first epoch: copies between the memories, and waits of
// the host.

#include <gtest/gtest.h>

#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "linkboy/callbacks/save_training_state.hpp"
#include "linkboy/trainer.hpp"
#include "simulated_cuda/simulation.hpp"
#include "support/every_callback.hpp"
#include "support/temporary_folder.hpp"
#include "support/toy.hpp"

namespace linkboy::simulated_cuda::testing {
namespace {

using namespace linkboy::testing;  // NOLINT(google-build-using-namespace)

constexpr int64_t kPerEpoch = 24;  // number of updates
// Both are in the second epoch, because some callbacks begin with it.
constexpr int64_t kFirst = 28;
constexpr int64_t kLast = 44;

/// Mean counts per update from kFirst to kLast, without those that are 0.
using PerUpdate = std::map<std::string, double>;

class CountUpdates : public Callback {
 public:
  void on_train_update_end(Trainer&) override {
    ++num_updates_;
    if (num_updates_ == kFirst) begin_ = counts();
    if (num_updates_ == kLast) end_ = counts();
  }

  PerUpdate costs() const {
    PerUpdate costs;
    for (const auto& [name, count] :
         {std::pair("host_to_device", &Counts::host_to_device),
          std::pair("overlapping_host_to_device", &Counts::overlapping_host_to_device),
          std::pair("device_to_host", &Counts::device_to_host),
          std::pair("stream_waits", &Counts::stream_waits),
          std::pair("device_waits", &Counts::device_waits),
          std::pair("event_waits", &Counts::event_waits),
          std::pair("draining_event_waits", &Counts::draining_event_waits),
          std::pair("pageable", &Counts::pageable)}) {
      const auto sum = static_cast<double>(end_.*count - begin_.*count);
      if (sum > 0) costs[name] = sum / (kLast - kFirst);
    }
    return costs;
  }

 private:
  int64_t num_updates_ = 0;
  Counts begin_;
  Counts end_;
};

PerUpdate costs_of(CallbackList callbacks, const torch::nn::Sequential& model,
                   Precision precision = Precision::fp32,
                   ExecutionMode mode = ExecutionMode::eager) {
  const auto count_updates = std::make_shared<CountUpdates>();
  callbacks.push_back(count_updates);
  auto optimizer = std::make_shared<torch::optim::AdamW>(model->parameters());
  QuietTrainer trainer(model, torch::nn::CrossEntropyLoss(), optimizer,
                       {.callbacks = std::move(callbacks),
                        .default_callbacks = {},
                        .accelerator = {.device = "cuda:0", .precision = precision}});
  TrainOptions options = contract_run();
  options.train_dataset = toy_data(4 * kPerEpoch);
  options.num_epochs = 2;
  options.gradient_clip_norm = 1.0;
  options.execution_mode = mode;
  trainer.train(options);
  return count_updates->costs();
}

// A batch has two tensors, its input and its target. They arrive while the device computes the
// previous update.
const PerUpdate kOnlyTheBatch{{"host_to_device", 2}, {"overlapping_host_to_device", 2}};

TEST(SteadyStateCostTest, AnUpdateCopiesItsBatchWithoutWaiting) {
  EXPECT_EQ(costs_of(default_callbacks(), toy_model()), kOnlyTheBatch);
  EXPECT_EQ(costs_of(default_callbacks(), toy_model(), Precision::bf16), kOnlyTheBatch);
  EXPECT_EQ(costs_of(default_callbacks(), toy_model(), Precision::fp32, ExecutionMode::graph),
            kOnlyTheBatch);
}

/// The host waits for the losses, and for the verdict on the gradients of the previous update. The
/// device then has the forward and backward pass of this update left to compute.
TEST(SteadyStateCostTest, TheDeviceHasWorkWhileTheHostWaitsInFp16) {
  PerUpdate costs = costs_of(default_callbacks(), toy_model(), Precision::fp16);
  EXPECT_LE(costs["event_waits"], 3);
  EXPECT_LE(costs["device_to_host"], 2);
  costs.erase("event_waits");
  costs.erase("device_to_host");
  EXPECT_EQ(costs, kOnlyTheBatch);
}

TEST(SteadyStateCostTest, AnAsynchronousSaveWaitsForTwoNumbersButNotForItsCopies) {
  const TemporaryFolder folder;
  const auto model = toy_model();
  const auto save = make<SaveTrainingState>(
      {.directory = folder.path(), .every_n_updates = 1, .asynchronous = true});
  PerUpdate costs = costs_of({save}, model);
  EXPECT_FALSE(costs.contains("stream_waits") || costs.contains("device_waits") ||
               costs.contains("pageable"));
  // Copies the weights and two averages of each, whether they are finite, and the loss.
  EXPECT_EQ(costs["device_to_host"], 3.0 * static_cast<double>(model->parameters().size()) + 2);
  // Waits for the last two and, in the background, for the copies. The wait of the last save may
  // come later.
  EXPECT_NEAR(costs["event_waits"], 3, 1.0 / (kLast - kFirst));
  EXPECT_EQ(costs["host_to_device"], 2);
}

TEST(SteadyStateCostTest, ClippingLaunchesNoUnneededKernel) {
  const Accelerator accelerator({.device = "cuda:0"});
  std::vector<torch::Tensor> parameters;
  for (int i = 0; i < 3; ++i) {
    parameters.push_back(torch::ones({4}, accelerator.device()).requires_grad_());
    parameters.back().mutable_grad() = torch::ones({4}, accelerator.device());
  }
  const auto before = counts().kernels;
  accelerator.clip_grad_norm(parameters, 1.0);
  // The norms, the stack, the norm of the stack, four for the coefficient, and the gradients.
  EXPECT_EQ(counts().kernels - before, 8);
}

class CallbackCostTest : public ::testing::TestWithParam<EveryCallback> {};

INSTANTIATE_TEST_SUITE_P(All, CallbackCostTest, ::testing::ValuesIn(every_callback()), name_of);

TEST_P(CallbackCostTest, IsLimitedToThePurposeOfEachCallback) {
  const std::string& name = GetParam().name;
  if (name == "limit-batches" || name == "fast-dev-run") {
    GTEST_SKIP() << "shortens the epochs";
  }
  const TemporaryFolder folder;
  const auto model = toy_model();
  PerUpdate costs = costs_of({GetParam().make(folder.path(), model)}, model);
  if (name == "save-training-state") {  // saves after every second update
    EXPECT_EQ(costs["host_to_device"], 2);
    EXPECT_GT(costs["device_to_host"], 0);
  } else if (name == "step-based-evaluation") {
    EXPECT_GT(costs["host_to_device"], 2);
    EXPECT_GT(costs["event_waits"], 0);
    EXPECT_FALSE(costs.contains("stream_waits") || costs.contains("device_waits"));
  } else {
    PerUpdate expected = kOnlyTheBatch;
    // These two copy losses that arrive later.
    if (name == "track-run" || name == "event-storage") expected["device_to_host"] = 1;
    EXPECT_EQ(costs, expected);
  }
}

}  // namespace
}  // namespace linkboy::simulated_cuda::testing
