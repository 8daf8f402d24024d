// Tests of the cost of an update after the first epoch: copies between the memories, and waits of
// the host.

#include <gtest/gtest.h>

#include <memory>
#include <ostream>
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

/// Mean counts per update, from kFirst to kLast.
struct PerUpdate {
  double host_to_device = 0;
  double overlapping_host_to_device = 0;
  double device_to_host = 0;
  double stream_waits = 0;
  double event_waits = 0;
  double draining_event_waits = 0;
  double pageable = 0;

  bool operator==(const PerUpdate&) const = default;
};

void PrintTo(const PerUpdate& costs, std::ostream* out) {
  *out << "{.host_to_device = " << costs.host_to_device
       << ", .overlapping_host_to_device = " << costs.overlapping_host_to_device
       << ", .device_to_host = " << costs.device_to_host
       << ", .stream_waits = " << costs.stream_waits << ", .event_waits = " << costs.event_waits
       << ", .draining_event_waits = " << costs.draining_event_waits
       << ", .pageable = " << costs.pageable << "}";
}

class CountUpdates : public Callback {
 public:
  void on_train_update_end(Trainer&) override {
    ++num_updates_;
    if (num_updates_ == kFirst) begin_ = counts();
    if (num_updates_ == kLast) end_ = counts();
  }

  PerUpdate costs() const {
    const auto each = [&](int64_t Counts::*count) {
      return static_cast<double>(end_.*count - begin_.*count) / (kLast - kFirst);
    };
    return {.host_to_device = each(&Counts::host_to_device),
            .overlapping_host_to_device = each(&Counts::overlapping_host_to_device),
            .device_to_host = each(&Counts::device_to_host),
            .stream_waits = each(&Counts::stream_waits) + each(&Counts::device_waits),
            .event_waits = each(&Counts::event_waits),
            .draining_event_waits = each(&Counts::draining_event_waits),
            .pageable = each(&Counts::pageable)};
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
constexpr PerUpdate kOnlyTheBatch{.host_to_device = 2, .overlapping_host_to_device = 2};

TEST(SteadyStateCostTest, AnUpdateCopiesItsBatchWithoutWaiting) {
  EXPECT_EQ(costs_of(default_callbacks(), toy_model()), kOnlyTheBatch);
  EXPECT_EQ(costs_of(default_callbacks(), toy_model(), Precision::bf16), kOnlyTheBatch);
  EXPECT_EQ(costs_of(default_callbacks(), toy_model(), Precision::fp32, ExecutionMode::graph),
            kOnlyTheBatch);
}

/// The host waits for the losses, and for the verdict on the gradients of the previous update. The
/// device then has the forward and backward pass of this update left to compute.
TEST(SteadyStateCostTest, TheDeviceHasWorkWhileTheHostWaitsInFp16) {
  const PerUpdate costs = costs_of(default_callbacks(), toy_model(), Precision::fp16);
  EXPECT_EQ(costs.host_to_device, 2);
  EXPECT_EQ(costs.overlapping_host_to_device, 2);
  EXPECT_EQ(costs.stream_waits, 0);
  EXPECT_EQ(costs.pageable, 0);
  EXPECT_EQ(costs.draining_event_waits, 0);
  EXPECT_LE(costs.event_waits, 3);
  EXPECT_LE(costs.device_to_host, 2);
}

TEST(SteadyStateCostTest, AnAsynchronousSaveWaitsForTwoNumbersButNotForItsCopies) {
  const TemporaryFolder folder;
  const auto model = toy_model();
  const auto save = make<SaveTrainingState>(
      {.directory = folder.path(), .every_n_updates = 1, .asynchronous = true});
  const PerUpdate costs = costs_of({save}, model);
  EXPECT_EQ(costs.stream_waits, 0);
  EXPECT_EQ(costs.pageable, 0);
  // Copies the weights and two averages of each, whether they are finite, and the loss.
  EXPECT_EQ(costs.device_to_host, 3.0 * static_cast<double>(model->parameters().size()) + 2);
  // Waits for the last two and, in the background, for the copies. The wait of the last save may
  // come later.
  EXPECT_NEAR(costs.event_waits, 3, 1.0 / (kLast - kFirst));
  EXPECT_EQ(costs.host_to_device, 2);
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

/// Returns the callbacks that do not shorten an epoch.
std::vector<EveryCallback> callbacks_of_whole_epochs() {
  std::vector<EveryCallback> callbacks = every_callback();
  std::erase_if(callbacks, [](const EveryCallback& callback) {
    return callback.name == "limit-batches" || callback.name == "fast-dev-run" ||
           callback.name == "overfit-batches";
  });
  return callbacks;
}

class CallbackCostTest : public ::testing::TestWithParam<EveryCallback> {};

INSTANTIATE_TEST_SUITE_P(All, CallbackCostTest, ::testing::ValuesIn(callbacks_of_whole_epochs()),
                         name_of);

TEST_P(CallbackCostTest, IsLimitedToThePurposeOfEachCallback) {
  const std::string& name = GetParam().name;
  const TemporaryFolder folder;
  const auto model = toy_model();
  const PerUpdate costs = costs_of({GetParam().make(folder.path(), model)}, model);
  if (name == "save-training-state") {  // saves after every second update
    EXPECT_EQ(costs.host_to_device, 2);
    EXPECT_GT(costs.device_to_host, 0);
  } else if (name == "step-based-evaluation") {
    EXPECT_GT(costs.host_to_device, 2);
    EXPECT_GT(costs.event_waits, 0);
    EXPECT_EQ(costs.stream_waits, 0);
  } else if (name == "track-run" || name == "event-storage") {  // copy losses that arrive later
    EXPECT_EQ(
        costs,
        (PerUpdate{.host_to_device = 2, .overlapping_host_to_device = 2, .device_to_host = 1}));
  } else {
    EXPECT_EQ(costs, kOnlyTheBatch);
  }
}

}  // namespace
}  // namespace linkboy::simulated_cuda::testing
