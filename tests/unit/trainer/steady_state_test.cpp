// After its warm-up, a training step queues its work and never waits for a whole stream of the
// device. LibTorch checks this: in its sync debug mode, such an operation is an error. The tests
// make the same runs on the CPU without that mode, so that the counts are tested everywhere.

#include <c10/cuda/CUDAFunctions.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <chrono>
#include <cstdio>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "linkboy/callbacks/lambda_callback.hpp"
#include "linkboy/callbacks/progress_bar.hpp"
#include "linkboy/schedulers/curves.hpp"
#include "linkboy/trainer.hpp"
#include "support/expect_error.hpp"
#include "support/toy.hpp"

namespace linkboy::testing::steady_state_test {
namespace {

using c10::cuda::SyncDebugMode, c10::cuda::warning_state;

constexpr int64_t kWindow = 2;    // micro-steps per update
constexpr int64_t kWarmUps = 8;   // updates; a graph is recorded in the second one
constexpr int64_t kWatched = 24;  // updates
constexpr int64_t kUpdates = 40;

bool syncs_are_errors() { return warning_state().get_sync_debug_mode() == SyncDebugMode::L_ERROR; }

/// During its lifetime, LibTorch throws if the host would wait for all work of a stream. It does
/// not detect a wait for a single event, as for the verdict on fp16 gradients.
class SyncsAreErrors {
 public:
  SyncsAreErrors() { warning_state().set_sync_debug_mode(SyncDebugMode::L_ERROR); }
  ~SyncsAreErrors() { warning_state().set_sync_debug_mode(SyncDebugMode::L_DISABLED); }
  SyncsAreErrors(const SyncsAreErrors&) = delete;
  SyncsAreErrors& operator=(const SyncsAreErrors&) = delete;
};

/// Checks complete updates, from the end of one update to the end of another, including data and
/// callbacks. The start and the end of an epoch are excluded: the epoch's loss is read there.
class RefuseSyncsAfterWarmUp : public Callback {
 public:
  void on_train_step_end(Trainer&, const Batch&, const StepOutput& output) override {
    losses.push_back(output.loss.detach().clone());  // a graph overwrites the loss
    num_watched_steps += is_watching_ ? 1 : 0;
    num_refusing_steps += syncs_are_errors() ? 1 : 0;
  }
  void on_train_update_end(Trainer& trainer) override {
    ++num_updates_;
    if (num_updates_ == kWarmUps) {
      is_watching_ = true;
      num_made_updates = -trainer.num_updates();
      if (trainer.accelerator().device().is_cuda()) syncs_are_errors_.emplace();
    } else if (num_updates_ == kWarmUps + kWatched) {
      stop();
      num_made_updates += trainer.num_updates();
    }
  }
  void on_exception(Trainer&, std::exception_ptr) override { stop(); }

  std::vector<torch::Tensor> losses;
  int64_t num_watched_steps = 0;
  int64_t num_refusing_steps = 0;
  int64_t num_made_updates = 0;  // within the checked ones; fp16 skips some

 private:
  void stop() {
    is_watching_ = false;
    syncs_are_errors_.reset();
  }

  int64_t num_updates_ = 0;
  bool is_watching_ = false;
  std::optional<SyncsAreErrors> syncs_are_errors_;
};

struct Setting {
  std::string name{};
  Precision precision = Precision::fp32;
  bool channels_last = false;
  ExecutionMode mode = ExecutionMode::eager;
  /// Whether the scale grows until gradients overflow, repeatedly. These gradients are not clipped,
  /// so that the optimizer's kernel divides by the scale.
  bool overflows = false;
  std::string device = "cpu";
};

void PrintTo(const Setting& setting, std::ostream* out) { *out << setting.name; }

/// Returns each setting once for the CPU and once, with a suffix, for a CUDA device.
std::vector<Setting> all_settings() {
  std::vector<Setting> settings{
      {.name = "fp32"},
      {.name = "bf16", .precision = Precision::bf16},
      {.name = "fp16", .precision = Precision::fp16},
      {.name = "fp16_that_overflows", .precision = Precision::fp16, .overflows = true},
      {.name = "channels_last", .channels_last = true},
      {.name = "channels_last_bf16", .precision = Precision::bf16, .channels_last = true},
      {.name = "graph", .mode = ExecutionMode::graph},
      {.name = "graph_fp16", .precision = Precision::fp16, .mode = ExecutionMode::graph},
      {.name = "graph_channels_last", .channels_last = true, .mode = ExecutionMode::graph},
  };
  for (Setting on_cuda : std::vector(settings)) {
    on_cuda.name += "_CUDA";
    on_cuda.device = "cuda:0";
    settings.push_back(std::move(on_cuda));
  }
  return settings;
}

/// Returns `rows` images of shape [2, 6, 6].
TensorDataset toy_images(int64_t rows) {
  const auto grid = torch::arange(rows * 72, torch::kFloat).reshape({rows, 2, 6, 6});
  return TensorDataset(torch::sin(grid * 0.7), torch::arange(rows) * 7 % 3);
}

torch::nn::Sequential toy_conv_net() {
  using namespace torch::nn;  // NOLINT(google-build-using-namespace)
  torch::manual_seed(5);
  return Sequential(Conv2d(Conv2dOptions(2, 8, 3).stride(2).padding(1)), BatchNorm2d(8), ReLU(),
                    Dropout(0.2), Flatten(), Linear(72, 3));
}

/// The default callbacks, with a progress bar that draws at every opportunity.
CallbackList busy_callbacks(std::FILE* stream, CallbackList more) {
  CallbackList callbacks = default_callbacks();
  callbacks.insert(callbacks.end(), more.begin(), more.end());
  for (auto& callback : callbacks) {
    if (!std::dynamic_pointer_cast<ProgressBar>(callback)) continue;
    callback = make<ProgressBar>({.mode = ProgressBarOptions::Mode::plain,
                                  .stream = stream,
                                  .plain_interval = std::chrono::milliseconds(0)});
  }
  return callbacks;
}

struct Training {
  explicit Training(const Setting& chosen, CallbackList more = {})
      : setting(chosen),
        optimizer(std::make_shared<torch::optim::AdamW>(model->parameters(),
                                                        torch::optim::AdamWOptions(0.01))),
        trainer(model, torch::nn::CrossEntropyLoss(), optimizer,
                {.callbacks = busy_callbacks(null_stream.get(), std::move(more)),
                 .default_callbacks = {},
                 .accelerator = {.device = setting.device,
                                 .precision = setting.precision,
                                 .grad_scaler = {.init_scale = setting.overflows ? 65536.0 : 64.0,
                                                 .growth_interval = setting.overflows ? 1 : 2000},
                                 .channels_last = setting.channels_last}}) {
    trainer.callback_handler().add(watch);
  }

  /// Trains with the options that add work to every update. On a CUDA device, the loader's threads,
  /// page-locked memory and copy stream are used by default.
  TrainResult train() {
    constexpr int64_t kBatchSize = 4;
    const std::optional<double> max_norm = setting.overflows ? std::nullopt : std::optional(1.0);
    return trainer.train({.train_dataset = toy_images(kUpdates * kWindow * kBatchSize),
                          .per_device_batch_size = kBatchSize,
                          .num_epochs = 1,
                          .gradient_accumulation_steps = kWindow,
                          .gradient_clip_norm = max_norm,
                          .create_scheduler_fn = cosine(),
                          .execution_mode = setting.mode});
  }

  Setting setting;
  std::unique_ptr<std::FILE, int (*)(std::FILE*)> null_stream{std::fopen("/dev/null", "w"),
                                                              std::fclose};
  torch::nn::Sequential model = toy_conv_net();
  std::shared_ptr<torch::optim::AdamW> optimizer;
  std::shared_ptr<RefuseSyncsAfterWarmUp> watch = std::make_shared<RefuseSyncsAfterWarmUp>();
  QuietTrainer trainer;
};

class SteadyStateTest : public ::testing::TestWithParam<Setting> {};

INSTANTIATE_TEST_SUITE_P(All, SteadyStateTest, ::testing::ValuesIn(all_settings()),
                         [](const auto& info) { return info.param.name; });

TEST_P(SteadyStateTest, NoStepSynchronizesAStream) {
  Training training(GetParam());
  const TrainResult result = training.train();

  const auto& watch = *training.watch;
  EXPECT_EQ(watch.num_watched_steps, kWatched * kWindow);
  EXPECT_EQ(watch.num_refusing_steps, GetParam().device == "cpu" ? 0 : kWatched * kWindow);
  EXPECT_FALSE(syncs_are_errors());
  ASSERT_EQ(watch.losses.size(), kUpdates * kWindow);
  EXPECT_TRUE(torch::stack(watch.losses).isfinite().all().item<bool>());
  if (GetParam().overflows) {
    EXPECT_GT(watch.num_made_updates, 0);
    EXPECT_LT(watch.num_made_updates, kWatched);
    return;
  }
  EXPECT_EQ(watch.num_made_updates, kWatched);
  EXPECT_EQ(result.num_updates, kUpdates);
  EXPECT_TRUE(training.trainer.run().gradient_norm().isfinite().item<bool>());
}

// The tests above rely on this fact: a step that waits fails.

TEST(SyncDebugModeTest, ACallbackThatReadsLossesFailsAfterTheWarmUp_CUDA) {
  int64_t num_read = 0;
  Training training(
      {.device = "cuda:0"},
      {lambda_callback({.on_train_step_end = [&](Trainer&, const Batch&, const StepOutput& output) {
        output.loss.item<float>();
        ++num_read;
      }})});
  EXPECT_ERROR_AS(c10::Error, training.train(), "synchronizing CUDA operation");
  EXPECT_EQ(num_read, kWarmUps * kWindow);
  EXPECT_FALSE(syncs_are_errors());
}

}  // namespace
}  // namespace linkboy::testing::steady_state_test
