// Who reads the run history as it grows.

#include "linkboy/extend/metric_reader.hpp"

#include <gtest/gtest.h>

#include "linkboy/checkpoint/state_dict.hpp"
#include "linkboy/run/run_history.hpp"
#include "support/expect_error.hpp"

namespace linkboy::testing::metric_reader_test {
namespace {

using Values = NewMetrics::NamedValues;

TEST(MetricReaderTest, AMetricThatWasDeletedHasNothingNewAndThenAllIsNew) {
  InMemoryRunHistory history;
  MetricReader reader("loss");
  history.update_metric("loss", 3.0);
  history.update_metric("loss", 2.0);
  EXPECT_EQ(reader.next(history, true), 2.0);
  history.delete_metric("loss");
  EXPECT_EQ(reader.next(history, true), std::nullopt);
  history.update_metric("loss", 1.0);
  EXPECT_EQ(reader.next(history, false), 1.0);
  EXPECT_EQ(reader.next(history, false), std::nullopt);
}

TEST(MetricReaderTest, AMetricThatIsNotThereIsAnErrorOnlyWhenAllAre) {
  InMemoryRunHistory history;
  MetricReader misspelt("eval_los_epoch");
  history.update_metric("test_eval_loss_epoch", 1.0);  // a callback's own evaluation
  EXPECT_EQ(misspelt.next(history, false), std::nullopt);
  history.update_metric("eval_loss_epoch", 0.5);
  EXPECT_ERROR(misspelt.next(history, true), "eval_los_epoch");
}

TEST(NewMetricsTest, GivesEachValueOnce) {
  InMemoryRunHistory history;
  NewMetrics metrics;
  history.update_metric("loss", 3.0);
  history.update_metric("loss", 2.0);
  history.update_metric("accuracy", 0.5);
  EXPECT_EQ(metrics.take(history), (Values{{"loss", 3.0}, {"loss", 2.0}, {"accuracy", 0.5}}));
  history.update_metric("loss", 1.0);
  EXPECT_EQ(metrics.take(history), (Values{{"loss", 1.0}}));
  EXPECT_TRUE(metrics.take(history).empty());
}

TEST(NewMetricsTest, AfterAResetOfTheHistoryAllValuesAreNew) {
  InMemoryRunHistory history;
  NewMetrics metrics;
  history.update_metric("loss", 3.0);
  history.update_metric("loss", 2.0);
  metrics.take(history);
  InMemoryRunHistory other;
  other.update_metric("loss", 1.0);
  EXPECT_EQ(metrics.take(other), (Values{{"loss", 1.0}}));
}

TEST(NewMetricsTest, StateSaysWhatWasTaken) {
  InMemoryRunHistory history;
  history.update_metric("loss", 3.0);
  NewMetrics before;
  before.take(history);
  NewMetrics after;
  after.load_state_dict(before.state_dict());
  history.update_metric("loss", 2.0);
  EXPECT_EQ(after.take(history), (Values{{"loss", 2.0}}));
}

TEST(NewMetricsTest, RejectsAStateThatCountsNothing) {
  EXPECT_ERROR((NewMetrics{}.load_state_dict({{"loss", "many"}})), "\"loss\"");
}

}  // namespace
}  // namespace linkboy::testing::metric_reader_test
