// Callbacks on several ranks.

#include "distributed/ranks.hpp"
#include "linkboy/callbacks/gradient_norm.hpp"
#include "linkboy/callbacks/model_summary.hpp"
#include "linkboy/callbacks/performance_monitor.hpp"
#include "linkboy/callbacks/save_predictions.hpp"
#include "linkboy/callbacks/time_limit.hpp"
#include "linkboy/checkpoint/checkpoint.hpp"
#include "support/every_callback.hpp"

namespace linkboy::testing::callbacks_test {
namespace {

TEST(MonitorCallbacksRanksTest, PredictionsAreInDatasetOrderEvenIfSomeRanksHaveNoSamples) {
  const SharedFolder folder;
  for (const int64_t rows : {1, 2, 5, 11, 24}) {
    SCOPED_TRACE(rows);
    const auto path = folder / (std::to_string(rows) + ".pt");
    RankToy toy(together(), {make<SavePredictions>({.path = path, .argmax = true})});
    toy.trainer.evaluate({.dataset = toy_data(rows), .per_device_batch_size = 2});
    toy.accelerator().wait_for_everyone();
    const StateDict saved = read_checkpoint(path);
    const torch::NoGradGuard no_grad;
    const auto expected =
        toy.model->forward(toy_inputs(rows).to(toy.trainer.accelerator().device())).cpu();
    EXPECT_TRUE(torch::equal(saved.get_tensor("targets"), torch::arange(rows) * 7 % 3));
    EXPECT_TRUE(torch::allclose(saved.get_tensor("outputs"), expected, 1e-5, 1e-6));
    EXPECT_TRUE(torch::equal(saved.get_tensor("argmax"), expected.argmax(1)));
  }
}

TEST(MonitorCallbacksRanksTest, TheGradientNormCoversTheWholeBatchEvenWithShardedGradients) {
  for (const int64_t zero_stage : {0, 2}) {
    const auto options = GradientNormOptions{.parts = GradientNormParts::modules};
    RankToy toy(together({.zero_stage = zero_stage}), {std::make_shared<GradientNorm>(options)});
    RankToy single(alone(), {std::make_shared<GradientNorm>(options)});
    TrainOptions run = run_of({.updates_per_epoch = 4, .batch_size = 2});
    run.train_dataloader_options.shuffle = false;
    toy.trainer.train(run);
    run.per_device_batch_size = 2 * num_ranks();
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
  void on_train_step_start(Trainer&) override {
    if (is_last_rank()) time_ += std::chrono::hours(1);
  }

 protected:
  Clock::time_point now() const override { return time_; }

 private:
  Clock::time_point time_{};
};

TEST(MonitorCallbacksRanksTest, ATimeLimitOnOneRankStopsAllAtTheSameUpdate) {
  const TimeLimitOptions options{.max_time = std::chrono::minutes(150)};
  RankToy toy(together(), {std::make_shared<OneSlowRank>(options)});
  const TrainResult result =
      toy.trainer.train(run_of({.updates_per_epoch = 8, .num_epochs = 2, .batch_size = 2}));
  EXPECT_EQ(result.reason, StopReason::stop_request);
  EXPECT_NE(result.message.find("time limit of 9000 s"), std::string::npos);
  EXPECT_LT(result.num_updates, 16);
  EXPECT_TRUE(same_on_all_ranks(toy.accelerator(), {torch::tensor({result.num_updates})}));
}

TEST(MonitorCallbacksRanksTest, OnlyTheMainProcessPrintsTheSummary) {
  const auto summary = std::make_shared<ModelSummary>();
  RankToy toy(together(), {summary, std::make_shared<PerformanceMonitor>()});
  EXPECT_EQ(toy.train(run_of({.updates_per_epoch = 2})).reason, StopReason::finished);
  EXPECT_EQ(summary->table().has_value(), this_rank() == 0);
  EXPECT_TRUE(same_on_all_ranks(toy));
}

// ---- Every built-in callback: none hangs, makes the ranks differ, or writes on ranks other than 0

class DistributedCallbackTest : public ::testing::TestWithParam<EveryCallback> {};

TEST_P(DistributedCallbackTest, KeepsAllRanksEqualInTrainAndEvaluate) {
  const SharedFolder folder;
  RankToy toy(together());
  toy.trainer.callback_handler().add(GetParam().make(folder.path(), toy.model));
  auto options = contract_run();
  options.train_dataset = toy_data(60);
  toy.trainer.train(options);
  EXPECT_TRUE(same_on_all_ranks(toy));
  const auto metrics = toy.trainer.evaluate({.dataset = toy_data(7)});
  ASSERT_EQ(metrics.count("evaluation_loss"), 1U);
  const std::string loss = std::to_string(metrics.at("evaluation_loss"));
  for (const std::string& other : toy.accelerator().all_gather_bytes(loss)) EXPECT_EQ(other, loss);
}

TEST_P(DistributedCallbackTest, OnlyRank0Writes) {
  // Each rank has its own folder, whose contents show whether the rank wrote.
  const std::string& name = GetParam().name;
  if (name == "profiler") GTEST_SKIP() << "each rank writes a trace";
  // This callback loads the checkpoint from the path where rank 0 wrote it.
  if (name == "save-best-model") GTEST_SKIP() << "all ranks read rank 0's file";
  const TemporaryFolder own;
  RankToy toy(together());
  toy.trainer.callback_handler().add(GetParam().make(own.path(), toy.model));
  toy.trainer.train(contract_run());
  if (this_rank() != 0) {
    auto names = own.names();
    std::erase(names, "start.pt");  // written by every_callback as input
    EXPECT_TRUE(names.empty()) << names.front();
  }
  toy.accelerator().wait_for_everyone();
}

INSTANTIATE_TEST_SUITE_P(All, DistributedCallbackTest, ::testing::ValuesIn(every_callback()),
                         name_of);

}  // namespace
}  // namespace linkboy::testing::callbacks_test
