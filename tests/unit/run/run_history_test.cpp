#include "linkboy/run/run_history.hpp"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "support/expect_error.hpp"

namespace linkboy::testing::run_history_test {
namespace {

TEST(RunHistoryTest, KeepsValuesInOrder) {
  InMemoryRunHistory history;
  history.update_metric("b", 1.0);
  history.update_metric("a", 2.0);
  history.update_metric("b", 3.0);
  EXPECT_EQ(history.get_metric_names(), (std::vector<std::string>{"b", "a"}));
  EXPECT_EQ(history.get_metric_values("b"), (std::vector<double>{1.0, 3.0}));
  EXPECT_EQ(history.get_latest_metric("b"), 3.0);
}

TEST(RunHistoryTest, ReadingAnUnknownMetricChangesNothing) {
  // pytorch-accelerated creates an empty entry, with which LogMetrics then fails.
  InMemoryRunHistory history;
  EXPECT_TRUE(history.get_metric_values("x").empty());
  EXPECT_ERROR(history.get_latest_metric("x"), "no value of the metric \"x\"");
  EXPECT_TRUE(history.get_metric_names().empty());
  EXPECT_ERROR(history.delete_metric("x"), "cannot be deleted");
}

TEST(RunHistoryTest, ResetKeepsOnlyThePrefix) {
  InMemoryRunHistory history;
  history.set_metric_name_prefix("ema_");
  history.update_metric("x", 1.0);
  history.increment_epoch();
  EXPECT_EQ(history.current_epoch(), 2);
  history.reset();
  EXPECT_EQ(history.current_epoch(), 1);
  EXPECT_TRUE(history.get_metric_names().empty());
  EXPECT_EQ(history.metric_name_prefix(), "ema_");
}

TEST(RunHistoryTest, AShortenedMetricKeepsItsFirstValues) {
  InMemoryRunHistory history;
  for (const double value : {1.0, 2.0, 3.0}) history.update_metric("a", value);
  history.update_metric("b", 4.0);
  history.shorten_metric("a", 5);
  history.shorten_metric("unknown", 0);
  EXPECT_EQ(history.num_metric_values("a"), 3);
  history.shorten_metric("a", 2);
  EXPECT_EQ(history.get_metric_values("a"), (std::vector<double>{1.0, 2.0}));
  history.shorten_metric("a", 0);
  EXPECT_EQ(history.get_metric_names(), (std::vector<std::string>{"b"}));
}

TEST(RunHistoryTest, RestoresItsState) {
  InMemoryRunHistory history;
  history.update_metric("x", 0.1);
  history.update_metric("x", 0.2);
  history.update_metric("y", -1.0);
  history.set_epoch(5);
  InMemoryRunHistory other;
  other.load_state_dict(history.state_dict());
  EXPECT_EQ(other.get_metric_values("x"), (std::vector<double>{0.1, 0.2}));
  EXPECT_EQ(other.get_metric_names(), history.get_metric_names());
  EXPECT_EQ(other.current_epoch(), 5);
  EXPECT_ERROR(other.load_state_dict({{"prefix", std::string()}}), "no \"current_epoch\"");
  history.delete_metric("x");
  EXPECT_EQ(history.get_metric_names(), (std::vector<std::string>{"y"}));
}

}  // namespace
}  // namespace linkboy::testing::run_history_test
