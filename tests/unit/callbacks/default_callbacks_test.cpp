#include "linkboy/callbacks/default_callbacks.hpp"

#include <gtest/gtest.h>

#include "linkboy/callbacks/early_stopping.hpp"
#include "linkboy/callbacks/progress_bar.hpp"
#include "linkboy/callbacks/save_best_model.hpp"
#include "linkboy/metrics/classification.hpp"
#include "support/expect_error.hpp"
#include "support/toy.hpp"

namespace linkboy::testing::default_callbacks_test {
namespace {

TEST(DefaultCallbacksTest, AreTheFiveOfPytorchAcceleratedWithTheMetricsAndTheGivenOnes) {
  const auto model = toy_model();
  Trainer trainer(
      model, torch::nn::CrossEntropyLoss(), toy_sgd(model),
      {.metrics = {{"accuracy", accuracy({.num_classes = 3})}}, .callbacks = {early_stopping()}});
  CallbackHandler& handler = trainer.callback_handler();
  EXPECT_EQ(handler.names(),
            (std::vector<std::string>{"linkboy::MetricCallback", "linkboy::MoveModulesToDevice",
                                      "linkboy::TerminateOnNaN", "linkboy::PrintProgress",
                                      "linkboy::ProgressBar", "linkboy::LogMetrics",
                                      "linkboy::EarlyStopping"}));
  EXPECT_NE(handler.find<ProgressBar>(), nullptr);
  EXPECT_EQ(handler.find<SaveBestModel>(), nullptr);
}

TEST(DefaultCallbacksTest, AnEmptyListLeavesThemOut) {
  const auto model = toy_model();
  Trainer trainer(model, torch::nn::CrossEntropyLoss(), toy_sgd(model), {.default_callbacks = {}});
  EXPECT_TRUE(trainer.callback_handler().names().empty());
}

TEST(DefaultCallbacksTest, AGivenCallbackReplacesTheDefaultOneOfItsName) {
  const auto model = toy_model();
  const auto own = progress_bar({.mode = ProgressBarOptions::Mode::none});
  Trainer trainer(model, torch::nn::CrossEntropyLoss(), toy_sgd(model), {.callbacks = {own}});
  EXPECT_EQ(trainer.callback_handler().find<ProgressBar>(), own);
  EXPECT_EQ(trainer.callback_handler().names().size(), 5U);
  EXPECT_ERROR(Trainer(model, torch::nn::CrossEntropyLoss(), toy_sgd(model),
                       {.callbacks = {own, progress_bar()}}),
               "there already is a callback named linkboy::ProgressBar");
}

TEST(DefaultCallbacksTest, MetricsOfTheOptionsAreRecordedInEachEvaluation) {
  const auto model = toy_model();
  Trainer trainer(model, torch::nn::CrossEntropyLoss(), toy_sgd(model),
                  {.metrics = {{"accuracy", accuracy({.num_classes = 3})},
                               {"kappa", cohen_kappa({.num_classes = 3})}},
                   .default_callbacks = {},
                   .accelerator = {.device = "cpu"}});
  const Metrics metrics = trainer.evaluate({.dataset = toy_data(8)});
  const auto right =
      trainer.predict({.dataset = toy_data(8)}).toTensor().argmax(1).eq(torch::arange(8) * 7 % 3);
  EXPECT_EQ(metrics.at("eval_accuracy"), right.sum().item<double>() / 8);
  EXPECT_TRUE(metrics.contains("eval_kappa"));
}

TEST(LowOverheadTest, HasOnlyMoveModulesToDevice) {
  const CallbackHandler handler(low_overhead_callbacks());
  ASSERT_EQ(handler.names().size(), 1U);
  EXPECT_NE(handler.names()[0].find("MoveModulesToDevice"), std::string::npos);
}

}  // namespace
}  // namespace linkboy::testing::default_callbacks_test
