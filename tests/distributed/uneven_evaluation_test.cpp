// Evaluations in which the ranks have different numbers of batches.

#include "distributed/agreement.hpp"
#include "distributed/ranks.hpp"
#include "support/at_update.hpp"
#include "support/environment_variable.hpp"

namespace linkboy::testing::uneven_evaluation_test {
namespace {

/// A loader of `size` batches. Rank 0 gets three more than the others.
class UnevenLoader : public DataLoader {
 public:
  UnevenLoader(std::shared_ptr<DataLoader> loader, int64_t size)
      : loader_(std::move(loader)), size_(size) {}
  int64_t size() const override { return size_; }
  int64_t batch_size() const override { return loader_->batch_size(); }
  std::unique_ptr<BatchIterator> iterate(int64_t epoch, int64_t first) override {
    class First : public BatchIterator {
     public:
      First(std::unique_ptr<BatchIterator> batches, int64_t left)
          : batches_(std::move(batches)), left_(left) {}
      std::optional<Batch> next() override {
        if (left_-- == 0) return std::nullopt;
        return batches_->next();
      }

     private:
      std::unique_ptr<BatchIterator> batches_;
      int64_t left_;
    };
    return std::make_unique<First>(loader_->iterate(epoch, first), size_);
  }

 private:
  std::shared_ptr<DataLoader> loader_;
  int64_t size_;
};

class UnevenTrainer : public QuietTrainer {
 public:
  using QuietTrainer::QuietTrainer;

 protected:
  std::shared_ptr<DataLoader> create_eval_dataloader(const EvaluateOptions& options) override {
    const int64_t size = accelerator().process_index() == 0 ? 5 : 2;
    return std::make_shared<UnevenLoader>(
        make_data_loader(options.dataset, {.batch_size = options.per_device_batch_size}), size);
  }
};

class GatherForMetrics : public Callback {
 public:
  explicit GatherForMetrics(int64_t stop_at) : stop_at_(stop_at) {}
  void on_eval_step_end(Trainer& trainer, const Batch& batch, const StepOutput&) override {
    num_rows += trainer.accelerator().gather_for_metrics(batch.target()).size(0);
    if (++num_steps_ == stop_at_) throw StopTraining(StopReason::early_stop, "seen enough");
  }
  int64_t num_rows = 0;

 private:
  int64_t stop_at_;
  int64_t num_steps_ = 0;
};

TEST(AgreementTest, EvaluationsCanDifferBySeveralBatches) {
  for (const int64_t stop_at : {0, 4}) {  // 4: in a step that only rank 0 makes
    const auto gather = std::make_shared<GatherForMetrics>(stop_at);
    auto model = toy_model();
    UnevenTrainer trainer(model, torch::nn::CrossEntropyLoss(), toy_sgd(model),
                          {.callbacks = {gather}, .accelerator = together()});
    const int64_t n = trainer.accelerator().num_processes();
    const auto metrics = trainer.evaluate({.dataset = toy_data(40), .per_device_batch_size = 4});
    EXPECT_EQ(trainer.result().reason == StopReason::early_stop, stop_at > 0);
    EXPECT_TRUE(metrics.contains("evaluation_loss"));
    const bool is_first = trainer.accelerator().process_index() == 0;
    EXPECT_EQ(gather->num_rows, 4 * (2 * n + (is_first ? 3 : 0)));
  }
}

TEST(AgreementTest, ShortEvaluationBatchesNeedFewAgreements) {
  const EnvironmentVariable shared_memory("LINKBOY_SHARED_MEMORY", "0");  // not counted
  RankToy toy(together());
  const ProcessGroup& group = toy.trainer.accelerator().process_group();
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
