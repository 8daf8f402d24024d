// Schedules in a Trainer.

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <limits>

#include "linkboy/callbacks/lambda_callback.hpp"
#include "linkboy/schedulers/cosine_scheduler.hpp"
#include "linkboy/schedulers/lambda_scheduler.hpp"
#include "linkboy/schedulers/linear_scheduler.hpp"
#include "linkboy/schedulers/reduce_on_plateau_scheduler.hpp"
#include "linkboy/schedulers/step_scheduler.hpp"
#include "linkboy/schedulers/timm_scheduler.hpp"
#include "support/at_update.hpp"
#include "support/expect_error.hpp"
#include "support/temporary_folder.hpp"
#include "support/toy.hpp"

namespace linkboy::testing::trainer_scheduler_test {
namespace {

TEST(TrainerSchedulerTest, PlateauFollowsTheEvaluationLoss) {
  class WorseAndWorse : public QuietTrainer {
   public:
    using QuietTrainer::QuietTrainer;

   protected:
    StepOutput calculate_eval_batch_loss(const Batch& batch) override {
      StepOutput output = QuietTrainer::calculate_eval_batch_loss(batch);
      output.loss = torch::full({}, static_cast<double>(run_history().current_epoch()));
      return output;
    }
  };
  ToyOf<WorseAndWorse> toy;
  toy.train({.num_epochs = 5,
             .eval_dataset = toy_data(4),
             .create_scheduler_fn = reduce_on_plateau({.factor = 0.5, .patience = 1})});
  EXPECT_DOUBLE_EQ(get_param_group_field(*toy.optimizer, ParamGroupField::lr)[0], 0.025);
}

TEST(TrainerSchedulerTest, AGroupAddedByACallbackIsScheduledFromTheNextUpdate) {
  std::vector<std::vector<double>> used;
  Toy toy({make<LambdaCallback>({
      .on_train_epoch_start =
          [](Trainer& trainer) {
            if (trainer.run_history().current_epoch() != 2) return;
            trainer.optimizer()->add_param_group(
                {{torch::zeros({1}).requires_grad_()},
                 std::make_unique<torch::optim::SGDOptions>(0.04)});
          },
      .on_gradients_ready =
          [&](Trainer& trainer) {
            used.push_back(get_param_group_field(*trainer.optimizer(), ParamGroupField::lr));
          },
  })});
  toy.train({.num_epochs = 2,
             .per_device_batch_size = 4,
             .create_scheduler_fn = linear({.start_factor = 1.0, .end_factor = 0.0})});
  EXPECT_EQ(used,
            (std::vector<std::vector<double>>{{0.1}, {0.1 * 0.75}, {0.05, 0.02}, {0.025, 0.01}}));
}

TEST(TrainerSchedulerTest, ATimmScheduleInEpochsIsConstantWithinAnEpoch) {
  std::vector<double> rates;
  Toy toy({make<LambdaCallback>({.on_train_step_start =
                                     [&](Trainer& trainer) {
                                       rates.push_back(get_param_group_field(
                                           *trainer.optimizer(), ParamGroupField::lr)[0]);
                                     }})},
          0.4);
  toy.train({.train_dataset = toy_data(6),
             .num_epochs = 3,
             .per_device_batch_size = 2,
             .create_scheduler_fn =
                 timm_schedule({.scheduler = step_decay({.step_size = 1, .gamma = 0.5})})});
  EXPECT_EQ(rates, (std::vector<double>{0.4, 0.4, 0.4, 0.2, 0.2, 0.2, 0.1, 0.1, 0.1}));
}

TEST(TrainerSchedulerTest, TheValueAfterTheLastUpdateMayBeInvalid) {
  const auto line = lambda_schedule(
      {.lr_lambda = {[](int64_t n) { return 1.0 - static_cast<double>(n) / 5.0; }}});
  const auto pole =
      lambda_schedule({.lr_lambda = {[](int64_t n) { return 1.0 / static_cast<double>(6 - n); }}});
  for (const auto& schedule : {line, pole}) {
    Toy toy({}, 0.4);
    TrainOptions options{.train_dataset = toy_data(6),
                         .num_epochs = 2,
                         .eval_dataset = toy_data(4),
                         .per_device_batch_size = 2,
                         .create_scheduler_fn = schedule};
    EXPECT_EQ(toy.trainer.train(options).num_epochs, 2);
    EXPECT_EQ(toy.trainer.run_history().get_metric_values("eval_loss_epoch").size(), 2U);
    toy.trainer.scheduler()->restore_base_values();
    EXPECT_EQ(get_param_group_field(*toy.optimizer, ParamGroupField::lr)[0], 0.4);
    options.num_epochs = 3;  // a later update would use the value
    EXPECT_THROW(toy.trainer.train(options), Error);
  }
}

TEST(TrainerSchedulerTest, ARunWithTheLargestNumberOfEpochsRunsUntilItIsStopped) {
  constexpr int64_t kMost = std::numeric_limits<int64_t>::max();
  Toy toy({stop_at(8)});  // in the second epoch
  TrainOptions options{.train_dataset = toy_data(8),
                       .num_epochs = kMost,
                       .per_device_batch_size = 2,
                       .create_scheduler_fn = step_decay({.step_size = 4})};
  EXPECT_EQ(toy.trainer.train(options).num_updates, 8);
  EXPECT_EQ(toy.trainer.run_config().max_num_updates, kMost);
  options.create_scheduler_fn = linear();
  EXPECT_ERROR(toy.trainer.train(options), "num_updates is 9.2");
}

TEST(TrainerSchedulerTest, ALongerRunIsResumedOnlyIfThatIsAllowed) {
  const TemporaryFolder folder;
  TrainOptions options{
      .train_dataset = toy_data(8), .num_epochs = 2, .create_scheduler_fn = cosine()};
  Toy first;
  first.trainer.train(options);
  first.trainer.save_training_state(folder.path());
  Toy second;
  const auto before = copies_of(second.model->parameters());
  options.num_epochs = 4;
  options.resume_from = folder.path();
  EXPECT_ERROR(second.trainer.train(options),
               "was saved with num_updates = 2 updates, but it is 4");
  EXPECT_TRUE(bit_equal(second.model->parameters(), before));
  options.allow_changed_schedule_length = true;
  EXPECT_EQ(second.trainer.train(options).num_updates, 4);
}

}  // namespace
}  // namespace linkboy::testing::trainer_scheduler_test
