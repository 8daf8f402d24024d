// Tests of the errors of `launch`. tests/distributed/launch_in_code.cpp tests a successful launch.

#include "linkboy/distributed/launch.hpp"

#include <gtest/gtest.h>

#include "linkboy/accelerator.hpp"
#include "support/expect_error.hpp"

namespace linkboy::testing::launch_test {
namespace {

void expect_refused(const LaunchOptions& options, const std::string& text) {
  EXPECT_OPTION_ERROR(launch(options), text);
}

TEST(LaunchTest, RefusesOptionsOutOfRange) {
  expect_refused({.rank = 0, .world_size = 0}, "world_size is 0; it must be from 1 to");
  expect_refused({.rank = 2, .world_size = 2}, "rank is 2; it must be from 0 to 1");
  expect_refused({.rank = -1, .world_size = 2}, "rank is -1");
  expect_refused({.rank = 0, .world_size = 2, .port = 70'000}, "port is 70000");
  expect_refused({.rank = 0, .world_size = 2, .host = ""}, "host is empty");
  expect_refused({.rank = 0, .world_size = 2, .local_rank = 2, .local_world_size = 2},
                 "local_rank is 2");
  expect_refused({.rank = 0, .world_size = 2, .local_rank = 0, .local_world_size = 3},
                 "local_world_size is 3");
}

TEST(LaunchTest, RefusesToGuessTheLocalRank) {
  expect_refused({.rank = 0, .world_size = 2, .local_rank = 0}, "set both or neither");
  expect_refused({.rank = 0, .world_size = 2, .host = "10.0.0.1"},
                 "may run on several hosts; set local_rank and local_world_size");
}

TEST(LaunchTest, RefusesToRunAfterAnAccelerator) {
  const Accelerator accelerator({.device = "cpu"});
  EXPECT_ERROR(launch({.rank = 0, .world_size = 1}), "launch was called after an Accelerator");
}

}  // namespace
}  // namespace linkboy::testing::launch_test
