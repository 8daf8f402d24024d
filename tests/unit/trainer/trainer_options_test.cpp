// The options of a Trainer.

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "linkboy/callbacks/early_stopping.hpp"
#include "linkboy/callbacks/lambda_callback.hpp"
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
  const Trainer trainer(model, CrossEntropyLoss(), toy_sgd(model));
  EXPECT_EQ(trainer.callback_handler().names(), CallbackHandler(default_callbacks()).names());
  EXPECT_FALSE(default_callbacks().empty());
  EXPECT_TRUE(Toy().trainer.callback_handler().callbacks().empty()) << "the list is empty";
}

/// Also counts the recorded values.
class CountingHistory : public RunHistory {
 public:
  std::vector<std::string> get_metric_names() const override { return kept_.get_metric_names(); }
  std::vector<double> get_metric_values(std::string_view name) const override {
    return kept_.get_metric_values(name);
  }
  double get_latest_metric(std::string_view name) const override {
    return kept_.get_latest_metric(name);
  }
  void update_metric(std::string_view name, double value) override {
    ++num_values;
    kept_.update_metric(name, value);
  }
  void delete_metric(std::string_view name) override { kept_.delete_metric(name); }
  void set_metric_name_prefix(std::string prefix) override {
    kept_.set_metric_name_prefix(std::move(prefix));
  }
  const std::string& metric_name_prefix() const override { return kept_.metric_name_prefix(); }
  int64_t current_epoch() const override { return kept_.current_epoch(); }
  void set_epoch(int64_t epoch) override { kept_.set_epoch(epoch); }
  void reset() override { kept_.reset(); }
  StateDict state_dict() const override { return kept_.state_dict(); }
  void load_state_dict(const StateDict& state) override { kept_.load_state_dict(state); }
  void shorten_metric(std::string_view name, int64_t num) override {
    kept_.shorten_metric(name, num);
  }

  int num_values = 0;

 private:
  InMemoryRunHistory kept_;
};

TEST(TrainerOptionsTest, UsesTheGivenRunHistory) {
  const auto model = toy_model();
  const auto history = std::make_shared<CountingHistory>();
  QuietTrainer trainer(model, CrossEntropyLoss(), toy_sgd(model),
                       {.default_callbacks = {}, .run_history = history});
  EXPECT_EQ(&trainer.run_history(), history.get());
  trainer.train({.train_dataset = toy_data(4), .num_epochs = 2, .eval_dataset = toy_data(4)});
  EXPECT_EQ(history->num_values, 4);
}

TEST(TrainerOptionsTest, UsesAGivenAcceleratorInsteadOfTheOptions) {
  const auto model = toy_model();
  const auto accelerator = std::make_shared<Accelerator>(
      AcceleratorOptions{.device = "cpu", .precision = Precision::bf16});
  QuietTrainer trainer(model, CrossEntropyLoss(), toy_sgd(model),
                       {.default_callbacks = {},
                        .accelerator = {.device = "cuda:99"},
                        .shared_accelerator = accelerator});
  EXPECT_EQ(&trainer.accelerator(), accelerator.get());
  trainer.train({.train_dataset = toy_data(4), .num_epochs = 1});
  EXPECT_EQ(trainer.run().config().precision, Precision::bf16);
}

TEST(TrainerOptionsTest, TwoTrainersMayShareAnAccelerator) {
  const auto accelerator = std::make_shared<Accelerator>(AcceleratorOptions{.device = "cpu"});
  Toy alone;
  alone.train({.num_epochs = 2});
  for (int i = 0; i < 2; ++i) {
    const auto model = toy_model();
    QuietTrainer trainer(model, CrossEntropyLoss(), toy_sgd(model),
                         {.default_callbacks = {}, .shared_accelerator = accelerator});
    trainer.train({.train_dataset = toy_data(8), .num_epochs = 2});
    EXPECT_TRUE(bit_equal(model->parameters(), alone.model->parameters())) << i;
  }
}

TEST(TrainerOptionsTest, TrainersThatShareAnAcceleratorDoNotTrainWithinEachOther) {
  const auto accelerator = std::make_shared<Accelerator>(AcceleratorOptions{.device = "cpu"});
  const auto model = toy_model();
  QuietTrainer inner(model, CrossEntropyLoss(), toy_sgd(model),
                     {.default_callbacks = {}, .shared_accelerator = accelerator});
  const auto train_within = make<LambdaCallback>({.on_train_epoch_end = [&](Trainer&) {
    inner.train({.train_dataset = toy_data(4), .num_epochs = 1});
  }});
  QuietTrainer outer(
      model, CrossEntropyLoss(), toy_sgd(model),
      {.callbacks = {train_within}, .default_callbacks = {}, .shared_accelerator = accelerator});
  EXPECT_ERROR(outer.train({.train_dataset = toy_data(4), .num_epochs = 1}),
               "while another Trainer is training with the same Accelerator");
  EXPECT_EQ(inner.train({.train_dataset = toy_data(4), .num_epochs = 1}).num_updates, 1);
}

TEST(TrainerOptionsTest, AnEvaluationWithinTheRunOfAnotherTrainerLeavesTheAcceleratorAsItIs) {
  const auto accelerator = std::make_shared<Accelerator>(
      AcceleratorOptions{.device = "cpu", .distributed = {.local_sgd_interval = 2}});
  const auto model = toy_model();
  QuietTrainer inner(model, CrossEntropyLoss(), toy_sgd(model),
                     {.default_callbacks = {}, .shared_accelerator = accelerator});
  inner.train({.train_dataset = toy_data(4), .num_epochs = 3});
  const auto state = [&] { return c10::str(accelerator->state_dict().to_ivalue()); };
  const auto evaluate_within = make<LambdaCallback>({.on_train_epoch_end = [&](Trainer&) {
    const std::string before = state();
    inner.evaluate({.dataset = toy_data(4)});
    EXPECT_EQ(state(), before);
  }});
  Toy other;
  QuietTrainer outer(
      other.model, CrossEntropyLoss(), other.optimizer,
      {.callbacks = {evaluate_within}, .default_callbacks = {}, .shared_accelerator = accelerator});
  outer.train({.train_dataset = toy_data(4), .num_epochs = 1});
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
  Toy toy({make<LambdaCallback>({.on_train_epoch_end = [&](Trainer&) { ++num_epochs; }})});
  toy.train({.num_epochs = 2, .create_scheduler_fn = cosine({.min_lr = 0.01})});
  EXPECT_EQ(num_epochs, 2);
}

}  // namespace
}  // namespace linkboy::testing::trainer_options_test
