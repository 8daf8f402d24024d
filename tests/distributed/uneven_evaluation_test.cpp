// Evaluations in which the ranks have different numbers of batches.

#include "distributed/agreement.hpp"
#include "distributed/ranks.hpp"
#include "linkboy/callbacks/lambda_callback.hpp"
#include "linkboy/extend/limited_loader.hpp"
#include "support/environment_variable.hpp"

namespace linkboy::testing::uneven_evaluation_test {
namespace {

/// Evaluates five batches on rank 0 and two on each other rank.
class UnevenTrainer : public QuietTrainer {
 public:
  using QuietTrainer::QuietTrainer;

 protected:
  std::shared_ptr<DataLoader> create_eval_dataloader(const EvaluateOptions& options) override {
    // A loader with a shard is not divided between the ranks.
    const auto all = make_data_loader(
        options.dataset, {.batch_size = options.per_device_batch_size, .shard = DataLoaderShard{}});
    return std::make_shared<LimitedLoader>(all, this_rank() == 0 ? 5 : 2);
  }
};

TEST(AgreementTest, EvaluationsCanDifferBySeveralBatches) {
  for (const int64_t stop_at : {0, 4}) {  // 4: in a step that only rank 0 makes
    SCOPED_TRACE(stop_at);
    int64_t num_rows = 0;
    const auto gather = make<LambdaCallback>(
        {.on_eval_step_end = [&, num_steps = 0](Trainer& trainer, const Batch& batch,
                                                const StepOutput&) mutable {
          num_rows += trainer.accelerator().gather_for_metrics(batch.target()).size(0);
          if (++num_steps == stop_at) throw StopTraining(StopReason::early_stop, "seen enough");
        }});
    RankToyOf<UnevenTrainer> toy(together(), {gather});
    const auto metrics =
        toy.trainer.evaluate({.dataset = toy_data(40), .per_device_batch_size = 4});
    EXPECT_EQ(toy.trainer.result().reason == StopReason::early_stop, stop_at > 0);
    EXPECT_TRUE(metrics.contains("evaluation_loss"));
    EXPECT_EQ(num_rows, 4 * (2 * num_ranks() + (this_rank() == 0 ? 3 : 0)));
  }
}

TEST(AgreementTest, ShortEvaluationBatchesNeedFewAgreements) {
  const EnvironmentVariable shared_memory("LINKBOY_SHARED_MEMORY", "0");  // not counted
  RankToy toy(together());
  const ProcessGroup& group = toy.accelerator().process_group();
  const auto count_for = [&](int64_t num_batches) {
    const uint64_t before = num_collectives(group);
    toy.trainer.evaluate(
        {.dataset = toy_data(num_batches * group.size()), .per_device_batch_size = 1});
    return num_collectives(group) - before;
  };
  const uint64_t least = count_for(1);
  EXPECT_LT(count_for(400), least + 300) << "about 12 agreements; more on a slow machine";
}

TEST(AgreementTest, TheSlowestRankDeterminesTheNextAgreement) {
  for (const char* is_wanted : {"1", "0"}) {
    const EnvironmentVariable shared_memory("LINKBOY_SHARED_MEMORY", is_wanted);
    const Accelerator accelerator(together());
    const auto group = accelerator.shared_process_group();
    StopAgreement agreement(group);
    agreement.begin({}, 7 - group->rank());
    EXPECT_FALSE(agreement.end());
    EXPECT_EQ(agreement.num_rounds(), 8 - group->size());
    agreement.begin({}, StopAgreement::kMostRounds);
    EXPECT_FALSE(agreement.end());
    EXPECT_EQ(agreement.num_rounds(), StopAgreement::kMostRounds);
    StopRequest wish;
    if (group->rank() == 1) wish = {StopReason::early_stop, StopUrgency::thrown, "enough"};
    agreement.begin(wish, 3);
    const StopRequest agreed = agreement.end();
    EXPECT_EQ(agreed.reason, StopReason::early_stop);
    EXPECT_EQ(agreed.urgency, StopUrgency::thrown);
    EXPECT_EQ(agreed.message, "enough");
  }
}

}  // namespace
}  // namespace linkboy::testing::uneven_evaluation_test
