#include "linkboy/callbacks/log_metrics.hpp"

#include <gtest/gtest.h>

#include "linkboy/callbacks/lambda_callback.hpp"
#include "support/expect_error.hpp"
#include "support/given_scores.hpp"
#include "support/matchers.hpp"

namespace linkboy::testing::log_metrics_test {
namespace {

TEST(LogMetricsTest, PrintsEachNewValueOnce) {
  Toy toy({std::make_shared<LogMetrics>()});
  TrainOptions options = epochs_of_one_update(2);
  options.eval_dataset = toy_data(4);
  toy.trainer.train(options);
  EXPECT_THAT(toy.trainer.lines,
              ElementsAre(StartsWith("train_loss_epoch: "), StartsWith("eval_loss_epoch: "),
                          StartsWith("train_loss_epoch: "), StartsWith("eval_loss_epoch: ")));
  toy.trainer.lines.clear();
  toy.trainer.evaluate({.dataset = toy_data(4)});
  EXPECT_THAT(toy.trainer.lines, ElementsAre(StartsWith("evaluation_loss: ")));
}

TEST(LogMetricsTest, PrintsOnlyEveryNthEpoch) {
  Toy toy({make<LogMetrics>({.every_n_epochs = 2})});
  toy.trainer.train(epochs_of_one_update(5));
  EXPECT_EQ(toy.trainer.lines.size(), 2U);
  EXPECT_ERROR(LogMetrics({.every_n_epochs = 0}), "every_n_epochs is 0");
}

TEST(LogMetricsTest, PrintsValuesRecordedAfterTheLastEpoch) {
  auto late = make<LambdaCallback>({.on_training_run_end = [](Trainer& trainer) {
    trainer.evaluate_now({.metric_prefix = "last_"});
  }});
  Toy toy({late, make<LogMetrics>({.every_n_epochs = 2})});
  TrainOptions options = epochs_of_one_update(4);
  options.eval_dataset = toy_data(4);
  toy.trainer.train(options);
  EXPECT_TRUE(toy.trainer.lines.back().starts_with("last_eval_loss_epoch: "));
}

TEST(LogMetricsTest, AContinuedHistoryIsNotPrintedAgain) {
  Toy toy({std::make_shared<LogMetrics>()});
  toy.trainer.train(epochs_of_one_update(3));
  toy.trainer.lines.clear();
  TrainOptions more = epochs_of_one_update(1);
  more.reset_run_history = false;
  toy.trainer.train(more);
  EXPECT_EQ(toy.trainer.lines.size(), 1U);
}

}  // namespace
}  // namespace linkboy::testing::log_metrics_test
