#include "linkboy/callbacks/metric_monitor.hpp"

#include <gtest/gtest.h>

#include "support/toy.hpp"

namespace linkboy::testing::metric_monitor_test {
namespace {

TEST(MetricMonitorTest, AResumedRunReadsAPendingValue) {
  Toy toy;
  auto& history = toy.trainer.run_history();
  MetricMonitor saved("score", true);
  saved.start_run(toy.trainer, /*is_resumed=*/false, /*reset=*/true);
  history.update_metric("score", 1.0);
  EXPECT_EQ(saved.new_value(toy.trainer), 1.0);
  history.update_metric("score", 2.0);  // in the next epoch
  const StateDict state = saved.state_dict();
  MetricMonitor resumed("score", true);
  resumed.load_state_dict(state);
  EXPECT_FALSE(resumed.start_run(toy.trainer, /*is_resumed=*/true, /*reset=*/true));
  EXPECT_EQ(resumed.new_value(toy.trainer), 2.0);
  EXPECT_TRUE(resumed.start_run(toy.trainer, /*is_resumed=*/false, /*reset=*/true));
  EXPECT_EQ(resumed.new_value(toy.trainer), std::nullopt);
}

}  // namespace
}  // namespace linkboy::testing::metric_monitor_test
