#include "linkboy/trainer.hpp"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <future>
#include <thread>

#include "linkboy/callbacks/lambda_callback.hpp"
#include "linkboy/schedulers/curves.hpp"
#include "support/at_update.hpp"
#include "support/expect_error.hpp"
#include "support/in_every_event.hpp"
#include "support/matchers.hpp"
#include "support/toy.hpp"

namespace linkboy::testing::trainer_test {
namespace {

TEST(TrainerTest, RejectsOptionsOutOfRangeBeforeAnythingChanges) {
  int num_events = 0;
  const auto count = [&](Trainer&) { ++num_events; };
  Toy toy({lambda_callback({.on_init_end = count,
                            .on_exception = [&](Trainer&, std::exception_ptr) { ++num_events; }})});
  const auto train = [&](auto change) {
    TrainOptions options{.train_dataset = toy_data(8), .num_epochs = 1};
    change(options);
    toy.trainer.train(options);
  };

  EXPECT_ERROR(train([](auto& o) { o.num_epochs.reset(); }),
               "neither num_epochs nor max_num_updates is set");
  EXPECT_ERROR(train([](auto& o) { o.num_epochs = 0; }), "num_epochs is 0");
  EXPECT_ERROR(train([](auto& o) { o.max_num_updates = 0; }), "max_num_updates is 0");
  EXPECT_ERROR(train([](auto& o) { o.per_device_batch_size = 0; }), "per_device_batch_size is 0");
  EXPECT_ERROR(train([](auto& o) { o.per_device_batch_size = -3; }), "per_device_batch_size is -3");
  EXPECT_ERROR(train([](auto& o) { o.gradient_accumulation_steps = 0; }),
               "gradient_accumulation_steps is 0");
  EXPECT_ERROR(train([](auto& o) { o.gradient_clip_value = 0.0; }), "gradient_clip_value is 0");
  EXPECT_ERROR(train([](auto& o) { o.gradient_clip_norm = NAN; }), "gradient_clip_norm is nan");
  EXPECT_ERROR(train([](auto& o) { o.evaluate_every_n_epochs = 0; }),
               "evaluate_every_n_epochs is 0");
  toy.optimizer->param_groups()[0].options().set_lr(NAN);
  EXPECT_ERROR(train([](auto&) {}), "the optimizer's lr is nan");
  EXPECT_EQ(num_events, 0);
}

TEST(TrainerTest, RejectsAnOptimizerThatHasAParameterTwice) {
  Toy toy;
  auto& groups = toy.optimizer->param_groups();
  groups[0].params().push_back(groups[0].params()[0]);
  EXPECT_ERROR(toy.train(), "is in the optimizer twice, in param groups 0 and 0");

  Toy other;
  auto& own_groups = other.optimizer->param_groups();
  own_groups.push_back(own_groups[0]);
  EXPECT_ERROR(other.train(), "is in the optimizer twice, in param groups 0 and 1");
}

TEST(TrainerTest, RejectsAnEmptyDataset) {
  Toy toy;
  EXPECT_ERROR(toy.train({.train_dataset = toy_data(0)}), "train_dataset is empty");
  EXPECT_ERROR(toy.train({.eval_dataset = toy_data(0)}), "the evaluation data is empty");
  EXPECT_ERROR(toy.train({.eval_dataset = toy_data(4),
                          .more_eval_datasets = {{"full", toy_data(4)}, {"hard", toy_data(0)}}}),
               "\"hard\": the evaluation data is empty");
  EXPECT_ERROR(toy.trainer.evaluate({.dataset = toy_data(0)}), "the evaluation data is empty");
  EXPECT_ERROR(toy.trainer.evaluate({.dataset = {}}), "dataset is missing");
  EXPECT_ERROR(toy.trainer.predict({.dataset = {}}), "dataset is missing");
}

TEST(TrainerTest, NeedsAnOptimizerAndALossFunction) {
  const auto model = toy_model();
  const TrainerOptions options{.default_callbacks = {}, .accelerator = {.device = "cpu"}};
  QuietTrainer without_optimizer(model, torch::nn::CrossEntropyLoss(), nullptr, options);
  EXPECT_ERROR(without_optimizer.train({.train_dataset = toy_data(8), .num_epochs = 1}),
               "has no optimizer");
  QuietTrainer without_loss(model, nullptr, toy_sgd(model), options);
  EXPECT_ERROR(without_loss.train({.train_dataset = toy_data(8), .num_epochs = 1}),
               "has no loss function");
}

TEST(TrainerTest, ReportsWhetherTheNumberOfUpdatesEndedTheEpochEarly) {
  std::vector<bool> were_cut_short;
  Toy toy;
  toy.on(Event::training_run_epoch_end,
         [&](Trainer& trainer) { were_cut_short.push_back(trainer.run().is_epoch_cut_short()); });
  toy.train({.per_device_batch_size = 2, .max_num_updates = 6});
  EXPECT_TRUE(toy.trainer.run().is_epoch_cut_short());
  toy.train({.per_device_batch_size = 2, .max_num_updates = 4});
  EXPECT_EQ(were_cut_short, (std::vector<bool>{false, true, false}));
}

TEST(TrainerTest, AContinuedRunTrainsExactlyTheRequestedEpochs) {
  // pytorch-accelerated stopped the second run after 11 updates.
  std::vector<int64_t> epochs;
  Toy toy({in_event(Event::training_run_epoch_end, [&](Trainer& trainer) {
    epochs.push_back(trainer.run_history().current_epoch());
  })});
  TrainOptions options{.train_dataset = toy_data(10), .per_device_batch_size = 1, .num_epochs = 2};
  EXPECT_EQ(toy.train(options).num_updates, 20);
  options.num_epochs = 3;
  options.reset_run_history = false;
  EXPECT_EQ(toy.train(options).num_updates, 30);
  EXPECT_EQ(epochs, (std::vector<int64_t>{1, 2, 3, 4, 5}));
  EXPECT_EQ(toy.values("train_loss_epoch").size(), 5U);
}

TEST(TrainerTest, ANewRunClearsTheHistoryOfThePreviousRun) {
  Toy toy;
  for (int run = 0; run < 2; ++run) toy.train({.num_epochs = 2});
  EXPECT_EQ(toy.values("train_loss_epoch").size(), 2U);
  EXPECT_EQ(toy.trainer.run_history().current_epoch(), 3);
}

TEST(TrainerTest, EvaluatesEveryNEpochsAndAfterTheLast) {
  Toy toy;
  toy.train({.eval_dataset = toy_data(4), .num_epochs = 5, .evaluate_every_n_epochs = 2});
  EXPECT_EQ(toy.values("eval_loss_epoch").size(), 3U);
  EXPECT_TRUE(toy.trainer.run().is_epoch_evaluated())
      << "refers to the last epoch, even after the run";
}

TEST(TrainerTest, StopRequestFromAnotherThreadEndsTheRun) {
  // Other threads may call request_stop, but not num_updates.
  std::promise<void> first_update;
  Toy toy({std::make_shared<AtUpdate>(1, [&](Trainer&) { first_update.set_value(); })});
  std::thread other([&] {
    first_update.get_future().wait();
    toy.trainer.request_stop(StopReason::stop_request, "enough");
  });
  const auto result = toy.train({.num_epochs = 1'000'000});
  other.join();
  EXPECT_EQ(result.reason, StopReason::stop_request);
  EXPECT_EQ(result.message, "enough");
}

TEST(TrainerTest, TheFirstStopRequestWinsAndEndsOnlyTheNextRun) {
  Toy toy;
  toy.trainer.request_stop(StopReason::early_stop, "no better");
  toy.trainer.request_stop(StopReason::stop_request, "Ctrl-C");
  const auto result = toy.train();
  EXPECT_EQ(result.num_updates, 0);
  EXPECT_EQ(result.reason, StopReason::early_stop);
  EXPECT_EQ(result.message, "no better");
  toy.trainer.request_stop(StopReason::early_stop);  // without a message
  toy.trainer.request_stop(StopReason::nan);
  EXPECT_EQ(toy.train().reason, StopReason::early_stop);
  toy.trainer.request_stop();
  EXPECT_EQ(toy.train().message, "Stopping training on request");
  EXPECT_EQ(toy.train().reason, StopReason::finished);
}

TEST(TrainerTest, AThrownStopDropsTheGradientsOfItsWindow) {
  Toy toy({in_event(Event::train_step_end, [](Trainer& trainer) {
    if (trainer.run().micro_step() == 1) throw StopTraining("now");
  })});
  const auto before = copies_of(toy.model->parameters());
  toy.train({.per_device_batch_size = 2, .gradient_accumulation_steps = 4});
  EXPECT_FALSE(toy.trainer.can_save_training_state());
  EXPECT_TRUE(bit_equal(before, toy.model->parameters()));
  for (const auto& parameter : toy.model->parameters()) EXPECT_FALSE(parameter.grad().defined());
}

TEST(TrainerTest, CustomEventsReachTheCallbacksThatHandleThem) {
  std::vector<int> heard;
  struct Listener : Callback {
    explicit Listener(std::vector<int>& all) {
      on_event("verify_train_batch", [&all](Trainer&, const std::any& payload) {
        all.push_back(std::any_cast<int>(payload));
      });
    }
  };
  Toy toy({lambda_callback({}), std::make_shared<Listener>(heard)});
  toy.trainer.call_event("verify_train_batch", 3);
  toy.trainer.call_event("nobody_listens", 4);
  EXPECT_EQ(heard, (std::vector<int>{3}));
}

TEST(TrainerTest, RunConfigContainsTheResolvedValues) {
  Toy toy;
  toy.train({.train_dataset = toy_data(10),
             .eval_dataset = toy_data(5),
             .per_device_batch_size = 2,
             .num_epochs = 3,
             .gradient_accumulation_steps = 2,
             .gradient_clip_norm = 1.5});
  const RunConfig& config = toy.trainer.run().config();
  EXPECT_EQ(config.num_train_batches_per_epoch, 5);
  EXPECT_EQ(config.num_updates_per_epoch, 3);
  EXPECT_EQ(config.max_num_updates, 9);
  EXPECT_EQ(config.num_eval_batches_per_epoch, 3);
  EXPECT_EQ(config.train_total_batch_size, 4);
  EXPECT_EQ(config.eval_total_batch_size, 2);
  const std::string text = config.to_string();
  EXPECT_THAT(text, HasSubstr("gradient_clip_norm: 1.5\n"));
  EXPECT_THAT(text, HasSubstr("gradient_clip_value: none\n"));
  EXPECT_THAT(text, HasSubstr("device: cpu\n"));
}

}  // namespace
}  // namespace linkboy::testing::trainer_test
