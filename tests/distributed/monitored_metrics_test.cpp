// Metrics that change a run must be the same on all ranks.

#include <limits>

#include "distributed/ranks.hpp"
#include "linkboy/callbacks/early_stopping.hpp"
#include "linkboy/callbacks/lambda_callback.hpp"
#include "linkboy/callbacks/model_ema.hpp"
#include "linkboy/callbacks/save_best_model.hpp"
#include "linkboy/schedulers.hpp"
#include "support/expect_error.hpp"

namespace linkboy::testing::monitored_metrics_test {
namespace {

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

/// Records a score per epoch: that of this rank.
struct ScoredRun {
  explicit ScoredRun(double score, std::shared_ptr<Callback> monitor = nullptr) {
    CallbackList callbacks{make<LambdaCallback>({.on_train_epoch_end = [=](Trainer& trainer) {
      trainer.run_history().update_metric("score", score);
    }})};
    if (monitor) callbacks.push_back(std::move(monitor));
    toy = std::make_unique<RankToy>(together(), std::move(callbacks));
  }
  TrainResult train(CreateSchedulerFn create_scheduler_fn = {}) const {
    TrainOptions options = run_of({.updates_per_epoch = 2, .num_epochs = 3});
    options.create_scheduler_fn = std::move(create_scheduler_fn);
    return toy->trainer.train(options);
  }
  std::unique_ptr<RankToy> toy;
};

double score_of_rank() { return is_last_rank() ? 0.25 : 0.5; }

std::string difference() {
  return c10::str("; on rank ", num_ranks() - 1, ", score is 0.25 (value 1)");
}

TEST(MonitoredMetricTest, OfAScheduleIsAnErrorOnAllRanksIfItDiffers) {
  const auto plateau = reduce_on_plateau({.monitor = "score", .patience = 0});
  const auto in_timms_style =
      timm_steps({.scheduler = [](auto&, const auto&) { return std::make_unique<TimmSteps>(); },
                  .monitor = "score"});
  const std::vector<CreateSchedulerFn> all{plateau, warmup({.scheduler = plateau}),
                                           sequential({.schedulers = {plateau}}), in_timms_style};
  for (const CreateSchedulerFn& schedule : all) {
    const ScoredRun differs(score_of_rank());
    EXPECT_ERROR_AS(DistributedError, differs.train(schedule), difference());
    EXPECT_ERROR(differs.train(schedule), "the monitored metric score differs between the ranks");
    EXPECT_ERROR(differs.train(schedule), "on rank 0, score is 0.5 (value 1)");
  }
  EXPECT_EQ(ScoredRun(0.5).train(plateau).reason, StopReason::finished);
}

TEST(MonitoredMetricTest, OfACallbackIsAnErrorOnAllRanksIfItDiffers) {
  const SharedFolder folder;
  const auto path = folder / "best.pt";
  EXPECT_ERROR(ScoredRun(score_of_rank(), make<EarlyStopping>({.monitor = "score"})).train(),
               difference());
  EXPECT_ERROR(
      ScoredRun(score_of_rank(), make<SaveBestModel>({.path = path, .monitor = "score"})).train(),
      difference());
}

TEST(MonitoredMetricTest, MissingOnOneRankIsAnErrorOnAll) {
  const auto record = make<LambdaCallback>({.on_train_epoch_end = [](Trainer& trainer) {
    if (!is_last_rank()) trainer.run_history().update_metric("score", 0.5);
  }});
  RankToy toy(together(), {record, make<EarlyStopping>({.monitor = "score"})});
  EXPECT_ERROR(toy.trainer.train(run_of({})),
               c10::str("on rank ", num_ranks() - 1, ", score has no value"));
}

TEST(MonitoredMetricTest, NanEqualsNan) {
  const double nan = is_last_rank() ? -kNan : kNan;
  ScoredRun run(nan, make<EarlyStopping>({.patience = 9, .monitor = "score"}));
  EXPECT_EQ(run.train(reduce_on_plateau({.monitor = "score"})).reason, StopReason::finished);
}

TEST(MonitoredMetricTest, AMetricThatNothingMonitorsMayDiffer) {
  const ScoredRun run(score_of_rank());
  EXPECT_EQ(run.train().reason, StopReason::finished);
}

}  // namespace
}  // namespace linkboy::testing::monitored_metrics_test
