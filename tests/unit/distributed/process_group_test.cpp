// Tests of process groups that do not need a second process.

#include <c10/util/ScopeExit.h>
#include <gtest/gtest.h>
#include <sys/resource.h>

#include "distributed/init_process_group.hpp"
#include "support/expect_error.hpp"

namespace linkboy::testing::process_group_test {
namespace {

TEST(WorldTest, TooManyRanksAreAnImmediateError) {
  rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &before), 0);
  const auto restore = c10::make_scope_exit([&] { ::setrlimit(RLIMIT_NOFILE, &before); });
  const rlimit fewer{.rlim_cur = 512, .rlim_max = before.rlim_max};
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &fewer), 0);
  LaunchEnvironment launch;
  launch.world_size = 1000;
  EXPECT_ERROR(init_process_group(launch, {}, torch::kCPU),
               "there are 1000 processes, and each connects to all others, but this one may open "
               "only 512 files. Correct the number of processes");
}

}  // namespace
}  // namespace linkboy::testing::process_group_test
