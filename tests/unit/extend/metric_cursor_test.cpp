#include "linkboy/extend/metric_cursor.hpp"

#include <gtest/gtest.h>

#include "linkboy/checkpoint/state_dict.hpp"
#include "linkboy/run/run_history.hpp"
#include "support/expect_error.hpp"

namespace linkboy::testing::metric_cursor_test {
namespace {

using Values = MetricCursor::NamedValues;

struct MetricCursorTest : ::testing::Test {
  InMemoryRunHistory history_;
  MetricCursor cursor_;
};

TEST_F(MetricCursorTest, ADeletedMetricHasNoNewValuesUntilItIsRecordedAgain) {
  history_.update_metric("loss", 3.0);
  history_.update_metric("loss", 2.0);
  EXPECT_EQ(cursor_.take_newest(history_, "loss", true), 2.0);
  history_.delete_metric("loss");
  EXPECT_EQ(cursor_.take_newest(history_, "loss", true), std::nullopt);
  history_.update_metric("loss", 1.0);
  EXPECT_EQ(cursor_.take_newest(history_, "loss", false), 1.0);
  EXPECT_EQ(cursor_.take_newest(history_, "loss", false), std::nullopt);
}

TEST_F(MetricCursorTest, AMissingMetricIsAnErrorOnlyIfAllAreMissing) {
  history_.update_metric("test_eval_loss_epoch", 1.0);  // from a callback's evaluation
  EXPECT_EQ(cursor_.take_newest(history_, "eval_los_epoch", false), std::nullopt);
  history_.update_metric("eval_loss_epoch", 0.5);
  EXPECT_ERROR(cursor_.take_newest(history_, "eval_los_epoch", true), "eval_los_epoch");
}

TEST_F(MetricCursorTest, ReturnsEachValueOnce) {
  history_.update_metric("loss", 3.0);
  history_.update_metric("loss", 2.0);
  history_.update_metric("accuracy", 0.5);
  EXPECT_EQ(cursor_.take(history_), (Values{{"loss", 3.0}, {"loss", 2.0}, {"accuracy", 0.5}}));
  history_.update_metric("loss", 1.0);
  EXPECT_EQ(cursor_.take(history_), (Values{{"loss", 1.0}}));
  EXPECT_TRUE(cursor_.take(history_).empty());
}

TEST_F(MetricCursorTest, AfterAResetOfTheHistoryAllValuesAreNew) {
  history_.update_metric("loss", 3.0);
  history_.update_metric("loss", 2.0);
  cursor_.take(history_);
  InMemoryRunHistory other;
  other.update_metric("loss", 1.0);
  EXPECT_EQ(cursor_.take(other), (Values{{"loss", 1.0}}));
}

TEST_F(MetricCursorTest, StateRecordsWhichValuesWereRead) {
  history_.update_metric("loss", 3.0);
  cursor_.take(history_);
  MetricCursor after;
  after.load_state_dict(cursor_.state_dict());
  history_.update_metric("loss", 2.0);
  EXPECT_EQ(after.take(history_), (Values{{"loss", 2.0}}));
  EXPECT_ERROR(cursor_.load_state_dict({{"loss", "many"}}), "\"loss\"");
}

}  // namespace
}  // namespace linkboy::testing::metric_cursor_test
