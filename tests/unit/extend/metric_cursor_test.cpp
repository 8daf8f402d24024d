#include "linkboy/extend/metric_cursor.hpp"

#include <gtest/gtest.h>

#include "linkboy/checkpoint/state_dict.hpp"
#include "linkboy/run/run_history.hpp"
#include "support/expect_error.hpp"

namespace linkboy::testing::metric_cursor_test {
namespace {

using Values = MetricCursor::NamedValues;

TEST(MetricCursorTest, ADeletedMetricHasNoNewValuesUntilItIsRecordedAgain) {
  InMemoryRunHistory history;
  MetricCursor cursor;
  history.update_metric("loss", 3.0);
  history.update_metric("loss", 2.0);
  EXPECT_EQ(cursor.take_newest(history, "loss", true), 2.0);
  history.delete_metric("loss");
  EXPECT_EQ(cursor.take_newest(history, "loss", true), std::nullopt);
  history.update_metric("loss", 1.0);
  EXPECT_EQ(cursor.take_newest(history, "loss", false), 1.0);
  EXPECT_EQ(cursor.take_newest(history, "loss", false), std::nullopt);
}

TEST(MetricCursorTest, AMissingMetricIsAnErrorOnlyIfAllAreMissing) {
  InMemoryRunHistory history;
  MetricCursor cursor;
  history.update_metric("test_eval_loss_epoch", 1.0);  // from a callback's evaluation
  EXPECT_EQ(cursor.take_newest(history, "eval_los_epoch", false), std::nullopt);
  history.update_metric("eval_loss_epoch", 0.5);
  EXPECT_ERROR(cursor.take_newest(history, "eval_los_epoch", true), "eval_los_epoch");
}

TEST(MetricCursorTest, ReturnsEachValueOnce) {
  InMemoryRunHistory history;
  MetricCursor metrics;
  history.update_metric("loss", 3.0);
  history.update_metric("loss", 2.0);
  history.update_metric("accuracy", 0.5);
  EXPECT_EQ(metrics.take(history), (Values{{"loss", 3.0}, {"loss", 2.0}, {"accuracy", 0.5}}));
  history.update_metric("loss", 1.0);
  EXPECT_EQ(metrics.take(history), (Values{{"loss", 1.0}}));
  EXPECT_TRUE(metrics.take(history).empty());
}

TEST(MetricCursorTest, AfterAResetOfTheHistoryAllValuesAreNew) {
  InMemoryRunHistory history;
  MetricCursor metrics;
  history.update_metric("loss", 3.0);
  history.update_metric("loss", 2.0);
  metrics.take(history);
  InMemoryRunHistory other;
  other.update_metric("loss", 1.0);
  EXPECT_EQ(metrics.take(other), (Values{{"loss", 1.0}}));
}

TEST(MetricCursorTest, StateRecordsWhichValuesWereRead) {
  InMemoryRunHistory history;
  history.update_metric("loss", 3.0);
  MetricCursor before;
  before.take(history);
  MetricCursor after;
  after.load_state_dict(before.state_dict());
  history.update_metric("loss", 2.0);
  EXPECT_EQ(after.take(history), (Values{{"loss", 2.0}}));
}

TEST(MetricCursorTest, RejectsAStateWithoutCounts) {
  EXPECT_ERROR((MetricCursor{}.load_state_dict({{"loss", "many"}})), "\"loss\"");
}

}  // namespace
}  // namespace linkboy::testing::metric_cursor_test
