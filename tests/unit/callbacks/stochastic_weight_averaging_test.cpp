#include "linkboy/callbacks/stochastic_weight_averaging.hpp"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <cmath>

#include "linkboy/callbacks/lambda_callback.hpp"
#include "linkboy/schedulers/curves.hpp"
#include "support/averages.hpp"
#include "support/cpu_trainer.hpp"
#include "support/expect_error.hpp"
#include "support/file_contents.hpp"
#include "support/run_with_all_state.hpp"
#include "support/saved_states.hpp"
#include "support/temporary_folder.hpp"

namespace linkboy::testing::stochastic_weight_averaging_test {
namespace {

using torch::Tensor;
using SwaOptions = StochasticWeightAveragingOptions;

/// Keeps the weights after each update, and the learning rate of the update.
class KeepUpdates : public Callback {
 public:
  void on_gradients_ready(Trainer& trainer) override {
    lrs.push_back(get_param_group_field(*trainer.optimizer(), ParamGroupField::lr)[0]);
  }
  void on_train_update_end(Trainer& trainer) override {
    weights.push_back(copies_of(trainer.model().parameters()));
  }
  std::vector<double> lrs;
  std::vector<std::vector<Tensor>> weights;
};

/// Returns the mean of the weights after these updates, counted from 1.
std::vector<Tensor> mean_after(const KeepUpdates& keep, const std::vector<std::size_t>& updates) {
  std::vector<Tensor> mean;
  for (std::size_t i = 0; i < keep.weights[0].size(); ++i) {
    std::vector<Tensor> all;
    for (std::size_t update : updates) {
      all.push_back(keep.weights[update - 1][i].to(torch::kDouble));
    }
    mean.push_back(torch::stack(all).mean(0));
  }
  return mean;
}

std::shared_ptr<StochasticWeightAveraging> swa(SwaOptions options) {
  return std::make_shared<StochasticWeightAveraging>(std::move(options));
}

/// The learning rate of the optimizer's only group.
double lr_of(Trainer& trainer) { return trainer.optimizer()->param_groups()[0].options().get_lr(); }

std::vector<double> swa_losses(const Toy& toy) { return toy.values("swa_model_eval_loss_epoch"); }

TEST(StochasticWeightAveragingTest, TheModelEndsWithTheMeanOfTheAveragedUpdates) {
  struct Case {
    const char* name;
    SwaOptions options;
    int64_t num_epochs;
    std::vector<std::size_t> averaged;
  };
  for (const Case& c : std::vector<Case>{
           {"the epochs", {.start_after = placeholders::num_updates_per_epoch * 2}, 5, {9, 12, 15}},
           {"from three quarters of the run on by default", {}, 8, {21, 24}},
           {"every nth update", {.start_after = 3, .every_n_updates = 2}, 3, {5, 7, 9}}}) {
    SCOPED_TRACE(c.name);
    auto keep = std::make_shared<KeepUpdates>();
    auto average = swa(c.options);
    Toy toy({keep, average});
    toy.trainer.train(three_updates_per_epoch(c.num_epochs));
    EXPECT_EQ(average->num_averaged(), std::ssize(c.averaged));
    expect_close(toy.model->parameters(), mean_after(*keep, c.averaged));
  }
}

TEST(StochasticWeightAveragingTest, TheDefaultPhaseFitsTheShortestRuns) {
  for (int64_t num_updates = 1; num_updates <= 5; ++num_updates) {
    SCOPED_TRACE(num_updates);
    const auto average = swa({.every_n_updates = 1});
    Toy toy({average});
    toy.train({.per_device_batch_size = 2, .max_num_updates = num_updates});
    EXPECT_EQ(average->num_averaged(), 1);
  }
}

TEST(StochasticWeightAveragingTest, EvaluatesTheAverage) {
  Toy toy({swa({})});
  toy.trainer.train(three_updates_per_epoch(4));
  const auto metrics = toy.trainer.evaluate({.dataset = toy_data(6), .per_device_batch_size = 4});
  EXPECT_EQ(metrics.at("evaluation_loss"), swa_losses(toy).back());
  Toy silent({swa({.evaluate = false})});
  silent.trainer.train(three_updates_per_epoch(4));
  EXPECT_TRUE(swa_losses(silent).empty());
}

TEST(StochasticWeightAveragingTest, ARunThatResumesAfterItsEndEvaluatesTheAverageOnce) {
  const TemporaryFolder folder;
  Toy toy({swa({})});
  toy.trainer.train(three_updates_per_epoch(4));
  toy.trainer.save_training_state(folder / "ended");
  // A stop of another callback comes after the average is evaluated.
  Toy stopped({swa({}), make<LambdaCallback>({.on_eval_epoch_end = [](Trainer& trainer) {
                 if (trainer.run().is_intermediate_evaluation()) throw StopTraining("late");
               }})});
  stopped.trainer.train(three_updates_per_epoch(4));
  EXPECT_EQ(swa_losses(stopped), swa_losses(toy));
  stopped.trainer.save_training_state(folder / "stopped");
  for (const char* state : {"ended", "stopped"}) {
    Toy again({swa({})});
    again.trainer.train(resumed_from(folder / state, three_updates_per_epoch(4)));
    EXPECT_EQ(swa_losses(toy).size(), 1U);
    EXPECT_EQ(swa_losses(again), swa_losses(toy));
  }
}

TEST(StochasticWeightAveragingTest, SetsAConstantLearningRateWithAndWithoutAScheduler) {
  for (const bool has_scheduler : {false, true}) {
    SCOPED_TRACE(has_scheduler);
    auto keep = std::make_shared<KeepUpdates>();
    Toy toy({keep, swa({.start_after = 4, .swa_lr = 0.03})});
    TrainOptions options = three_updates_per_epoch(2);
    if (has_scheduler) options.create_scheduler_fn = cosine();
    toy.trainer.train(options);
    ASSERT_EQ(keep->lrs.size(), 6U);
    EXPECT_EQ(keep->lrs[0], 0.1);
    EXPECT_NE(keep->lrs[3], 0.03);
    EXPECT_EQ(keep->lrs[4], 0.03);
    EXPECT_EQ(keep->lrs[5], 0.03);
    // The next run starts like this one.
    toy.trainer.train(options);
    EXPECT_EQ(keep->lrs[6], 0.1);
  }
}

TEST(StochasticWeightAveragingTest, RestoresTheLearningRateNextToAScheduleOfAnotherField) {
  Toy toy({swa({.start_after = 4, .swa_lr = 0.03})});
  TrainOptions options = three_updates_per_epoch(2);
  options.create_scheduler_fn = cosine({.field = ParamGroupField::momentum});
  toy.trainer.train(options);
  EXPECT_EQ(lr_of(toy.trainer), 0.1);
}

TEST(StochasticWeightAveragingTest, AnnealsTheLearningRate) {
  const SwaOptions cosine{.start_after = 2, .swa_lr = 0.5, .num_annealing_updates = 4};
  SwaOptions linear = cosine;
  linear.annealing = SwaOptions::Annealing::linear;
  const double eighth = std::sqrt(0.125);
  for (const auto& [options, shares] : std::vector<std::pair<SwaOptions, std::vector<double>>>{
           {cosine, {0, 0, 0, 0.5 - eighth, 0.5, 0.5 + eighth, 1, 1, 1}},
           {linear, {0, 0, 0, 0.25, 0.5, 0.75, 1, 1, 1}}}) {
    auto keep = std::make_shared<KeepUpdates>();
    Toy toy({keep, swa(options)});
    toy.trainer.train(three_updates_per_epoch(3));
    for (std::size_t k = 0; k < 9; ++k) {
      EXPECT_NEAR(keep->lrs[k], 0.1 + 0.4 * shares[k], 1e-12)
          << (options.annealing == linear.annealing ? "linear " : "cosine ") << k;
    }
  }
}

TEST(StochasticWeightAveragingTest, AnExceptionInAnUpdateRestoresTheRateOfTheSchedule) {
  class FailingStep : public QuietTrainer {
   public:
    using QuietTrainer::QuietTrainer;
    void optimizer_step() override { throw Error("no more"); }
  };
  auto trainer = cpu_trainer<FailingStep>(toy_model(), {swa({.start_after = 0, .swa_lr = 0.03})});
  TrainOptions options = three_updates_per_epoch(2);
  options.create_scheduler_fn = cosine();
  EXPECT_ERROR(trainer.train(options), "no more");
  EXPECT_EQ(lr_of(trainer), 0.1);
}

TEST(StochasticWeightAveragingTest, ALaterRunRestoresItsInitialLearningRate) {
  Toy toy({swa({.start_after = 4, .swa_lr = 0.03})});
  toy.trainer.train(three_updates_per_epoch(2));
  set_param_group_field(*toy.optimizer, ParamGroupField::lr, {0.2});
  toy.trainer.train(three_updates_per_epoch(2));
  EXPECT_EQ(lr_of(toy.trainer), 0.2);
}

TEST(StochasticWeightAveragingTest, TheInitialCheckChangesNothing) {
  const auto run = [](bool update_batch_norm) {
    const auto keep = std::make_shared<KeepUpdates>();
    auto trainer =
        cpu_trainer(model_with_dropout(),
                    {keep, swa({.start_after = 0, .update_batch_norm = update_batch_norm})});
    trainer.train({.train_dataset = toy_data(8), .num_epochs = 2});
    return keep->weights.back();
  };
  EXPECT_TRUE(bit_equal(run(true), run(false)));
}

TEST(StochasticWeightAveragingTest, AnExceptionAtTheEndRestoresTheWeightsOfTheModel) {
  const auto keep = std::make_shared<KeepUpdates>();
  Toy toy({keep, swa({.start_after = 0}),
           make<LambdaCallback>({.on_eval_epoch_start = [](Trainer& trainer) {
             if (trainer.run().is_intermediate_evaluation()) throw Error("no evaluation");
           }})});
  EXPECT_ERROR(toy.trainer.train(three_updates_per_epoch(3)), "no evaluation");
  EXPECT_TRUE(bit_equal(toy.model->parameters(), keep->weights.back()));
}

TEST(StochasticWeightAveragingTest, KeepsTheWeightsOfARunThatWillResume) {
  for (const auto reason : {StopReason::stop_request, StopReason::nan, StopReason::early_stop}) {
    SCOPED_TRACE(to_string(reason));
    auto keep = std::make_shared<KeepUpdates>();
    Toy toy({keep, swa({.start_after = 2}), std::make_shared<AtUpdate>(8, [&](Trainer& trainer) {
               trainer.request_stop(reason);
             })});
    toy.trainer.train(three_updates_per_epoch(4));
    const bool goes_on = reason != StopReason::early_stop;
    EXPECT_EQ(bit_equal(toy.model->parameters(), keep->weights.back()), goes_on);
    if (!goes_on) expect_close(toy.model->parameters(), mean_after(*keep, {3, 6}));
    EXPECT_EQ(swa_losses(toy).empty(), goes_on);
  }
}

TEST(StochasticWeightAveragingTest, RejectsOptionsThatDoNotFit) {
  const auto train = [](SwaOptions options) {
    Toy toy({swa(std::move(options))});
    toy.trainer.train(three_updates_per_epoch(2));
  };
  EXPECT_ERROR(swa({.every_n_updates = 0}), "every_n_updates is 0");
  EXPECT_ERROR(swa({.swa_lr = -1.0}), "swa_lr is -1");
  EXPECT_ERROR(train({.start_after = 6}), "start_after is 6, but the run has 6 updates");
  EXPECT_ERROR(train({.start_after = -1}), "start_after is -1");
  EXPECT_ERROR(train({.num_annealing_updates = -2}), "num_annealing_updates is -2");
  EXPECT_ERROR(swa({})->averaged_model_state(), "no weights have been averaged yet");
}

struct SwaRehearsal {
  explicit SwaRehearsal(bool has_scheduler, int64_t last_update = 100)
      : trainer(cpu_trainer(model,
                            {swa({.start_after = placeholders::num_updates / 3,
                                  .swa_lr = 0.02,
                                  .num_annealing_updates = 3}),
                             stop_at(last_update)},
                            toy_sgd(model))) {
    if (has_scheduler) options.create_scheduler_fn = cosine();
  }

  torch::nn::Sequential model = model_with_dropout();
  QuietTrainer trainer;
  TrainOptions options = three_updates_per_epoch(4);
};

TEST(StochasticWeightAveragingTest, AResumedRunIsBitIdenticalToTheUninterruptedOne) {
  const TemporaryFolder folder;
  for (const bool has_scheduler : {false, true}) {
    SwaRehearsal whole(has_scheduler);
    whole.trainer.train(whole.options);
    whole.trainer.save_training_state(folder / "whole");
    const std::string expected = read_bytes(folder / "whole" / kTrainingStateFile);
    // Before, at and after the start of the averaging, at an epoch's end and at the run's end.
    for (int64_t k : {2, 4, 5, 9, 12}) {
      SCOPED_TRACE(k);
      SwaRehearsal first(has_scheduler, k);
      // Saves the state of the update, before the end of the run restores the learning rates.
      first.trainer.callback_handler().add(
          make<SaveTrainingState>({.directory = folder / "states"}));
      first.trainer.train(first.options);
      SwaRehearsal second(has_scheduler);
      const auto options = resumed_from(folder / "states", second.options);
      EXPECT_EQ(second.trainer.train(options).num_updates, 12);
      second.trainer.save_training_state(folder / "resumed");
      EXPECT_EQ(read_bytes(folder / "resumed" / kTrainingStateFile), expected);
    }
  }
}

// A run that ends after a number of updates adds its last weights to the average, but its saved
// state does not contain them.
TEST(StochasticWeightAveragingTest, ALongerRunForgetsTheEndOfTheShorterOne) {
  const TemporaryFolder folder;
  const auto train = [&](int64_t num_updates, bool is_resumed) {
    auto average = swa({.start_after = 3});
    Toy toy({average, make<SaveTrainingState>({.directory = folder / "states"})});
    TrainOptions options = three_updates_per_epoch(4);
    options.max_num_updates = num_updates;
    if (is_resumed) options.resume_from = folder / "states";
    toy.trainer.train(options);
    return std::pair(average->num_averaged(), copies_of(toy.model->parameters()));
  };
  const auto whole = train(12, false);
  EXPECT_EQ(whole.first, 3);            // after 6, 9 and 12
  EXPECT_EQ(train(8, false).first, 2);  // after 6 and 8
  const auto longer = train(12, true);
  EXPECT_EQ(longer.first, 3);
  EXPECT_TRUE(bit_equal(longer.second, whole.second));
  const auto ended = train(12, true);  // no updates are left
  EXPECT_EQ(ended.first, 3);
  EXPECT_TRUE(bit_equal(ended.second, whole.second));
}

}  // namespace
}  // namespace linkboy::testing::stochastic_weight_averaging_test
