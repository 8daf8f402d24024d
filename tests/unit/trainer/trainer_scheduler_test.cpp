// Schedules in a Trainer.

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <functional>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "linkboy/callbacks/save_best_model.hpp"
#include "linkboy/checkpoint/checkpoint.hpp"
#include "linkboy/fine_tuning/batch_size_finder.hpp"
#include "linkboy/fine_tuning/lr_finder.hpp"
#include "linkboy/schedulers/composite.hpp"
#include "linkboy/schedulers/curves.hpp"
#include "linkboy/schedulers/functions.hpp"
#include "linkboy/schedulers/reactive.hpp"
#include "support/at_update.hpp"
#include "support/expect_error.hpp"
#include "support/given_scores.hpp"
#include "support/in_every_event.hpp"
#include "support/temporary_folder.hpp"
#include "support/toy.hpp"
#include "support/toy_optimizer.hpp"

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
  toy.train({.eval_dataset = toy_data(4),
             .num_epochs = 5,
             .create_scheduler_fn = reduce_on_plateau({.factor = 0.5, .patience = 1})});
  EXPECT_DOUBLE_EQ(rates_of(*toy.optimizer)[0], 0.025);
}

TEST(TrainerSchedulerTest, AGroupAddedByACallbackIsScheduledFromTheNextUpdate) {
  std::vector<std::vector<double>> used;
  Toy toy;
  toy.on(Event::train_epoch_start, [](Trainer& trainer) {
    if (trainer.run_history().current_epoch() != 2) return;
    trainer.optimizer()->add_param_group(
        {{torch::zeros({1}).requires_grad_()}, std::make_unique<torch::optim::SGDOptions>(0.04)});
  });
  toy.on(Event::gradients_ready, [&](Trainer&) { used.push_back(rates_of(*toy.optimizer)); });
  toy.train({.per_device_batch_size = 4,
             .num_epochs = 2,
             .create_scheduler_fn = linear({.start_factor = 1.0, .end_factor = 0.0})});
  EXPECT_EQ(used,
            (std::vector<std::vector<double>>{{0.1}, {0.1 * 0.75}, {0.05, 0.02}, {0.025, 0.01}}));
}

TEST(TrainerSchedulerTest, ATimmScheduleInEpochsIsConstantWithinAnEpoch) {
  std::vector<double> rates;
  Toy toy({}, 0.4);
  toy.on(Event::train_step_start, [&](Trainer&) { rates.push_back(rates_of(*toy.optimizer)[0]); });
  toy.train({.train_dataset = toy_data(6),
             .per_device_batch_size = 2,
             .num_epochs = 3,
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
                         .eval_dataset = toy_data(4),
                         .per_device_batch_size = 2,
                         .num_epochs = 2,
                         .create_scheduler_fn = schedule};
    EXPECT_EQ(toy.trainer.train(options).num_epochs, 2);
    EXPECT_EQ(toy.trainer.run_history().get_metric_values("eval_loss_epoch").size(), 2U);
    restore_base_values(*toy.trainer.scheduler(), *toy.optimizer);
    EXPECT_EQ(rates_of(*toy.optimizer)[0], 0.4);
    options.num_epochs = 3;  // a later update would use the value
    EXPECT_THROW(toy.trainer.train(options), Error);
  }
}

TEST(TrainerSchedulerTest, ARunWithTheLargestNumberOfEpochsRunsUntilItIsStopped) {
  constexpr int64_t kMost = std::numeric_limits<int64_t>::max();
  Toy toy({stop_at(8)});  // in the second epoch
  TrainOptions options{.train_dataset = toy_data(8),
                       .per_device_batch_size = 2,
                       .num_epochs = kMost,
                       .create_scheduler_fn = step_decay({.step_size = 4})};
  EXPECT_EQ(toy.trainer.train(options).num_updates, 8);
  EXPECT_EQ(toy.trainer.run().config().max_num_updates, kMost);
  options.create_scheduler_fn = linear();
  EXPECT_ERROR(toy.trainer.train(options), "num_updates is 9.2");
}

const TrainOptions kPlain{.train_dataset = toy_data(8), .num_epochs = 1};

TrainOptions scheduled_run(int64_t num_epochs) {
  TrainOptions options = kPlain;
  options.num_epochs = num_epochs;
  options.create_scheduler_fn = cosine();
  return options;
}

TEST(TrainerSchedulerTest, ALaterRunStartsFromTheBaseValuesWhateverCameBetween) {
  const TrainOptions scheduled = scheduled_run(4);
  const std::vector<std::pair<std::string, std::function<void(Toy&)>>> between{
      {"nothing", [](Toy&) {}},
      {"a run without a schedule", [](Toy& toy) { toy.trainer.train(kPlain); }},
      {"find_batch_size",
       [&](Toy& toy) { find_batch_size(toy.trainer, scheduled, {.max_batch_size = 2}); }},
      {"find_learning_rate",
       [&](Toy& toy) { find_learning_rate(toy.trainer, scheduled, {.num_updates = 3}); }},
      {"a failed run",
       [](Toy& toy) {
         TrainOptions failing = kPlain;
         failing.callbacks = {
             in_event(Event::train_step_start, [](Trainer&) { throw Error("failed"); })};
         EXPECT_ERROR(toy.trainer.train(failing), "failed");
       }},
      {"a run whose schedule is refused",
       [&](Toy& toy) {
         TrainOptions refused = scheduled;
         refused.create_scheduler_fn = step_decay({.step_size = 0});
         EXPECT_ERROR(toy.trainer.train(refused), "step_size");
       }},
      {"evaluate", [](Toy& toy) { toy.trainer.evaluate({.dataset = toy_data(4)}); }}};
  const std::vector<double> base{0.1, 0.02};
  for (const auto& [name, call] : between) {
    for (const auto& [name_2, call_2] : between) {
      SCOPED_TRACE(name + ", then " + name_2);
      Toy toy;
      toy.optimizer->add_param_group({{torch::zeros({1}, torch::requires_grad())},
                                      std::make_unique<torch::optim::SGDOptions>(0.02)});
      const auto registered = toy_sgd(toy.model, 0.3);
      toy.trainer.register_optimizer("other", registered, step_decay({.step_size = 2}));
      toy.trainer.train(scheduled);
      const std::vector<double> at_end = rates_of(*toy.optimizer);
      EXPECT_NE(at_end, base);
      call(toy);
      call_2(toy);
      EXPECT_EQ(rates_of(*toy.optimizer), at_end);
      std::vector<double> first;
      toy.on(Event::training_run_start, [&](Trainer&) {
        first = rates_of(*toy.optimizer);
        EXPECT_EQ(rates_of(*registered), (std::vector<double>{0.3}));
      });
      toy.trainer.train(scheduled);
      EXPECT_EQ(first, base);
    }
  }
}

TEST(TrainerSchedulerTest, ARateThatIsSetByHandToTheBaseValueIsKept) {
  const TemporaryFolder folder;
  Toy first;
  first.trainer.train(scheduled_run(2));
  first.trainer.save_checkpoint(folder / "end.pt");
  first.trainer.train(kPlain);
  Toy second;
  second.trainer.load_checkpoint(folder / "end.pt");
  for (Toy* toy : {&first, &second}) {
    // A checkpoint has no base value of a rate that no schedule has set.
    set_param_group_field(*toy->optimizer, ParamGroupField::lr, {0.07});
    toy->trainer.save_checkpoint(folder / "by_hand.pt");
    Toy third;
    third.trainer.load_checkpoint(folder / "by_hand.pt");
    third.trainer.train(scheduled_run(2));
    EXPECT_EQ(third.trainer.scheduler()->base_values(), (std::vector<double>{0.07}));
    set_param_group_field(*toy->optimizer, ParamGroupField::lr, {0.1});
    toy->trainer.train(kPlain);
    EXPECT_EQ(rates_of(*toy->optimizer), (std::vector<double>{0.1}));
  }
}

TEST(TrainerSchedulerTest, BaseValuesOutliveACheckpointWithoutTheSchedule) {
  const TemporaryFolder folder;
  // The best epoch is not the last one, so that the schedule of the run has set another rate.
  Toy toy({std::make_shared<GivenScores>(std::vector{1.0, 0.0, 1.0, 2.0, 1.0, 0.0, 1.0, 2.0}),
           make<SaveBestModel>(
               {.path = folder / "best.pt", .monitor = "score", .save_scheduler = false})});
  toy.trainer.train(scheduled_run(4));
  const double best_rate = rates_of(*toy.optimizer)[0];
  EXPECT_NE(best_rate, 0.1);
  EXPECT_NE(best_rate, toy.trainer.scheduler()->last_values()[0].values[0]);
  toy.trainer.train(scheduled_run(4));
  EXPECT_EQ(toy.trainer.scheduler()->base_values(), (std::vector<double>{0.1}));
}

TEST(TrainerSchedulerTest, BaseValuesArePartOfACheckpointAsInPython) {
  const TemporaryFolder folder;
  const auto register_other = [](Toy& toy, double lr) {
    toy.trainer.register_optimizer("other", toy_sgd(toy.model, lr), step_decay({.step_size = 1}));
  };
  Toy first;
  register_other(first, 0.3);
  first.trainer.train(scheduled_run(2));
  first.trainer.save_checkpoint(folder / "end.pt");
  const StateDict saved = read_checkpoint(folder / "end.pt").get_dict("optimizer_state_dict");
  const StateDict group = StateDict::from_ivalue(saved.get_list("param_groups")[0], "group");
  EXPECT_EQ(group.get_double("initial_lr"), 0.1);
  EXPECT_NE(group.get_double("lr"), 0.1);
  // Also if the checkpoint goes through a Trainer that has not trained yet, or without a schedule.
  for (const std::string_view between : {"load", "load, save, load", "load, train, save, load"}) {
    SCOPED_TRACE(between);
    Toy second;
    register_other(second, 0.5);
    second.trainer.load_checkpoint(folder / "end.pt");
    if (between != "load") {
      if (between.find("train") != std::string_view::npos) second.trainer.train(kPlain);
      second.trainer.save_checkpoint(folder / "between.pt");
      second.trainer.load_checkpoint(folder / "between.pt");
    }
    second.trainer.train(scheduled_run(2));
    EXPECT_EQ(second.trainer.scheduler()->base_values(), (std::vector<double>{0.1}));
    EXPECT_EQ(second.trainer.scheduler("other")->base_values(), (std::vector<double>{0.3}));
  }
}

TEST(TrainerSchedulerTest, ATrainerWithAnOverrideOfCreateSchedulerRestoresBaseValuesToo) {
  class Own : public QuietTrainer {
   public:
    using QuietTrainer::QuietTrainer;
    bool is_scheduled = true;

   protected:
    std::unique_ptr<Scheduler> create_scheduler(const TrainOptions&) override {
      if (!is_scheduled) return nullptr;
      return step_decay({.step_size = 1, .gamma = 0.5})(*optimizer(), run().config());
    }
  };
  ToyOf<Own> toy;
  toy.train();
  EXPECT_EQ(rates_of(*toy.optimizer), (std::vector<double>{0.05}));
  toy.trainer.is_scheduled = false;
  toy.train();
  EXPECT_EQ(rates_of(*toy.optimizer), (std::vector<double>{0.05})) << "no schedule changes it";
  toy.trainer.is_scheduled = true;
  toy.train();
  EXPECT_EQ(rates_of(*toy.optimizer), (std::vector<double>{0.05})) << "half of 0.1 again";
}

}  // namespace
}  // namespace linkboy::testing::trainer_scheduler_test
