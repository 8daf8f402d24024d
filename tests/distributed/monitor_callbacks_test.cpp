// Callbacks that measure and record, on several ranks.

#include <chrono>
#include <vector>

#include "distributed/ranks.hpp"
#include "linkboy/callbacks/gradient_norm.hpp"
#include "linkboy/callbacks/model_summary.hpp"
#include "linkboy/callbacks/phase_timer.hpp"
#include "linkboy/callbacks/save_predictions.hpp"
#include "linkboy/callbacks/time_limit.hpp"
#include "linkboy/checkpoint/checkpoint.hpp"
#include "support/temporary_folder.hpp"

namespace linkboy::testing::monitor_callbacks_test {
namespace {

/// Returns rank 0's path on all ranks.
std::filesystem::path shared_path(Trainer& trainer, const TemporaryFolder& folder) {
  return trainer.accelerator().broadcast_bytes((folder / "predictions.pt").string());
}

TEST(MonitorCallbacksRanksTest, PredictionsAreInDatasetOrderEvenIfSomeRanksHaveNoSamples) {
  const TemporaryFolder folder;
  for (const int64_t rows : {1, 2, 5, 11, 24}) {
    RankToy toy(together());
    const auto path = shared_path(toy.trainer, folder);
    toy.trainer.callback_handler().add(make<SavePredictions>({.path = path, .argmax = true}));
    toy.trainer.evaluate({.dataset = toy_data(rows), .per_device_batch_size = 2});
    toy.trainer.accelerator().wait_for_everyone();
    const StateDict saved = read_checkpoint(path);
    const auto inputs = torch::sin(torch::arange(rows * 4, torch::kFloat).reshape({rows, 4}) * 0.7);
    const torch::NoGradGuard no_grad;
    const auto expected = toy.model->forward(inputs.to(toy.trainer.device())).cpu();
    EXPECT_TRUE(torch::equal(saved.get_tensor("targets"), torch::arange(rows) * 7 % 3)) << rows;
    EXPECT_TRUE(torch::allclose(saved.get_tensor("outputs"), expected, 1e-5, 1e-6)) << rows;
    EXPECT_TRUE(torch::equal(saved.get_tensor("argmax"), expected.argmax(1))) << rows;
    toy.trainer.accelerator().wait_for_everyone();  // before the file is replaced
  }
}

TEST(MonitorCallbacksRanksTest, TheGradientNormCoversTheWholeBatchEvenWithShardedGradients) {
  for (const int64_t zero_stage : {0, 2}) {
    const auto options = GradientNormOptions{.parts = GradientNormParts::modules};
    RankToy toy(together({.zero_stage = zero_stage}), {std::make_shared<GradientNorm>(options)});
    RankToy single(alone(), {std::make_shared<GradientNorm>(options)});
    const int64_t n = toy.trainer.accelerator().num_processes();
    TrainOptions run{.train_dataset = toy_data(8 * n),
                     .num_epochs = 1,
                     .per_device_batch_size = 2,
                     .train_dataloader_options = {.shuffle = false}};
    toy.trainer.train(run);
    run.per_device_batch_size = 2 * n;
    single.trainer.train(run);
    for (const char* name :
         {"train_gradient_norm", "train_gradient_norm_max", "train_gradient_norm_2"}) {
      EXPECT_NEAR(toy.trainer.run_history().get_latest_metric(name),
                  single.trainer.run_history().get_latest_metric(name), 1e-5)
          << name << " with zero_stage " << zero_stage;
    }
  }
}

/// A clock that advances by an hour per step on the last rank, and stands still on the others.
class OneSlowRank : public TimeLimit {
 public:
  using TimeLimit::TimeLimit;
  void on_train_step_start(Trainer& trainer) override {
    const auto& accelerator = trainer.accelerator();
    if (accelerator.process_index() == accelerator.num_processes() - 1) {
      time_ += std::chrono::hours(1);
    }
  }

 protected:
  Clock::time_point now() const override { return time_; }

 private:
  Clock::time_point time_{};
};

TEST(MonitorCallbacksRanksTest, ATimeLimitOnOneRankStopsAllAtTheSameUpdate) {
  const TimeLimitOptions options{.max_time = std::chrono::minutes(150)};
  RankToy toy(together(), {std::make_shared<OneSlowRank>(options)});
  const int64_t n = toy.trainer.accelerator().num_processes();
  const TrainResult result = toy.trainer.train(
      {.train_dataset = toy_data(16 * n), .num_epochs = 2, .per_device_batch_size = 2});
  EXPECT_EQ(result.reason, StopReason::stop_request);
  EXPECT_NE(result.message.find("time limit of 9000 s"), std::string::npos);
  EXPECT_LT(result.num_updates, 16);
  EXPECT_TRUE(same_on_all_ranks(toy.trainer.accelerator(), {torch::tensor({result.num_updates})}));
}

TEST(MonitorCallbacksRanksTest, OnlyTheMainProcessPrintsTheSummary) {
  const auto summary = std::make_shared<ModelSummary>();
  RankToy toy(together(), {summary, std::make_shared<PhaseTimer>()});
  const TrainResult result = toy.trainer.train(
      {.train_dataset = toy_data(16), .num_epochs = 1, .per_device_batch_size = 2});
  EXPECT_EQ(result.reason, StopReason::finished);
  EXPECT_EQ(summary->table().has_value(), toy.trainer.accelerator().is_main_process());
  EXPECT_TRUE(same_on_all_ranks(toy.trainer.accelerator(), toy.parameters()));
}

}  // namespace
}  // namespace linkboy::testing::monitor_callbacks_test
