// The options of a Trainer.

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "linkboy/callbacks/early_stopping.hpp"
#include "linkboy/callbacks/save_best_model.hpp"
#include "linkboy/metrics/classification.hpp"
#include "linkboy/run/run_history.hpp"
#include "linkboy/schedulers/curves.hpp"
#include "linkboy/tracking/csv_tracker.hpp"
#include "support/expect_error.hpp"
#include "support/temporary_folder.hpp"
#include "support/toy.hpp"

namespace linkboy::testing::trainer_options_test {
namespace {

using torch::nn::CrossEntropyLoss;

TEST(TrainerOptionsTest, ATrainerWithoutAListHasTheDefaultCallbacks) {
  const auto model = toy_model();
  Trainer trainer(model, CrossEntropyLoss(), toy_sgd(model));
  EXPECT_EQ(trainer.callback_handler().names(), CallbackHandler(default_callbacks()).names());
  EXPECT_FALSE(default_callbacks().empty());
  EXPECT_TRUE(Toy().trainer.callback_handler().callbacks().empty()) << "the list is empty";
}

TEST(TrainerOptionsTest, UsesTheGivenRunHistory) {
  const auto model = toy_model();
  const auto history = std::make_shared<InMemoryRunHistory>();
  QuietTrainer trainer(model, CrossEntropyLoss(), toy_sgd(model),
                       {.default_callbacks = {}, .run_history = history});
  EXPECT_EQ(&trainer.run_history(), history.get());
  trainer.train({.train_dataset = toy_data(4), .eval_dataset = toy_data(4), .num_epochs = 2});
  EXPECT_EQ(history->get_metric_values("train_loss_epoch").size(), 2U);
  EXPECT_EQ(history->get_metric_values("eval_loss_epoch").size(), 2U);
}

struct SharedAcceleratorTest : ::testing::Test {
  /// Returns a Trainer of a new toy model that uses the accelerator.
  QuietTrainer sharing(CallbackList callbacks = {}) {
    const auto model = toy_model();
    return QuietTrainer(model, CrossEntropyLoss(), toy_sgd(model),
                        {.callbacks = std::move(callbacks),
                         .default_callbacks = {},
                         .accelerator = {.device = "cuda:99"},  // not used
                         .shared_accelerator = accelerator_});
  }

  std::shared_ptr<Accelerator> accelerator_ =
      std::make_shared<Accelerator>(AcceleratorOptions{.device = "cpu"});
  TrainOptions options_{.train_dataset = toy_data(4), .num_epochs = 1};
};

TEST_F(SharedAcceleratorTest, IsUsedInsteadOfTheOptions) {
  accelerator_ = std::make_shared<Accelerator>(
      AcceleratorOptions{.device = "cpu", .precision = Precision::bf16});
  QuietTrainer trainer = sharing();
  EXPECT_EQ(&trainer.accelerator(), accelerator_.get());
  trainer.train(options_);
  EXPECT_EQ(trainer.run().config().precision, Precision::bf16);
}

TEST_F(SharedAcceleratorTest, ServesTwoTrainersOneAfterTheOther) {
  Toy alone({}, 0.1, {.device = "cpu"});
  alone.train(options_);
  for (int i = 0; i < 2; ++i) {
    QuietTrainer trainer = sharing();
    trainer.train(options_);
    EXPECT_TRUE(bit_equal(trainer.model().parameters(), alone.model->parameters())) << i;
  }
}

TEST_F(SharedAcceleratorTest, DoesNotServeTwoTrainersAtTheSameTime) {
  QuietTrainer inner = sharing();
  QuietTrainer outer =
      sharing({in_event(Event::train_epoch_end, [&](Trainer&) { inner.train(options_); })});
  EXPECT_ERROR(outer.train(options_),
               "while another Trainer is training with the same Accelerator");
  EXPECT_EQ(inner.train(options_).num_updates, 1);
}

TEST_F(SharedAcceleratorTest, IsLeftAsItIsByAnEvaluationWithinTheRunOfAnotherTrainer) {
  accelerator_ = std::make_shared<Accelerator>(
      AcceleratorOptions{.device = "cpu", .distributed = {.local_sgd_interval = 2}});
  const auto state = [&] { return c10::str(accelerator_->state_dict().to_ivalue()); };
  QuietTrainer inner = sharing();
  inner.train({.train_dataset = toy_data(4), .num_epochs = 3});
  QuietTrainer outer = sharing({in_event(Event::train_epoch_end, [&](Trainer&) {
    const std::string before = state();
    inner.evaluate({.dataset = toy_data(4)});
    EXPECT_EQ(state(), before);
  })});
  outer.train(options_);
}

TEST(TrainerOptionsTest, InvalidAcceleratorOptionsAreRefusedByTheConstructor) {
  const auto model = toy_model();
  EXPECT_THROW(
      Trainer(model, CrossEntropyLoss(), toy_sgd(model), {.accelerator = {.device = "tpu"}}),
      OptionError);
}

TEST(MakeTest, AcceptsOptionsASubjectOrNothing) {
  const TemporaryFolder folder;
  EXPECT_EQ(make<SaveBestModel>({.path = folder / "best.pt"})->phase(), Callback::Phase::act);
  EXPECT_NE(make<EarlyStopping>(), nullptr);
  const EarlyStopping::Options options{.patience = 3};
  EXPECT_NE(make<EarlyStopping>(options), nullptr);
  EXPECT_EQ(make<Accuracy>({.num_classes = 2})->compute().dim(), 0);
  EXPECT_NE(make<CsvTracker>(folder / "a.csv"), nullptr);
  EXPECT_NE(make<CsvTracker>(folder / "a.csv", {.append = true}), nullptr);
  int64_t num_epochs = 0;
  Toy toy({in_event(Event::train_epoch_end, [&](Trainer&) { ++num_epochs; })});
  toy.train({.num_epochs = 2, .create_scheduler_fn = cosine({.min_lr = 0.01})});
  EXPECT_EQ(num_epochs, 2);
}

}  // namespace
}  // namespace linkboy::testing::trainer_options_test
