#include "distributed/heartbeat.hpp"

#include <gtest/gtest.h>
#include <torch/csrc/distributed/c10d/HashStore.hpp>

namespace linkboy::heartbeat_test {
namespace {

// A heartbeat's text is the number of rounds, the number of calls and an error message, or "left".

TEST(SortRanksTest, SortsRanksByTheirHeartbeats) {  // rank 0 works normally
  const SortedRanks sorted = sort_ranks({0, 1, 3, 4, 6}, {"5 9 ", "5 9 ", "5 9 ", "5 9 ", "5 8 "},
                                        {"8 9 ", "5 9 ", "left", "8 9 no such file", "8 8 "});
  EXPECT_EQ(sorted.silent, std::vector<int64_t>{1});
  EXPECT_EQ(sorted.left, std::vector<int64_t>{3});
  ASSERT_EQ(sorted.failed.size(), 1U);
  EXPECT_EQ(sorted.failed[0].first, 4);
  EXPECT_EQ(sorted.failed[0].second, "no such file");
  EXPECT_EQ(sorted.behind, std::vector<int64_t>{6});
}

TEST(DescribeCauseTest, LostRanksAreNamedFirst) {
  const Heartbeat::Failure late{.late_call = "barrier", .otherwise = "nobody knows"};
  const SortedRanks all{
      .silent = {1, 2}, .left = {3, 5}, .failed = {{4, "boo."}}, .behind = {6, 7}};
  const std::pair<SortedRanks, const char*> cases[]{
      {all, "ranks 1 and 2 are lost (no sign of life for 2 s). See their output"},
      {{.silent = {1}, .left = all.left, .failed = all.failed, .behind = all.behind},
       "rank 1 is lost (no sign of life for 2 s). See its output"},
      {{.left = all.left, .failed = all.failed, .behind = all.behind},
       "rank 4 failed: boo. See its output"},
      {{.left = all.left, .behind = all.behind}, "ranks 3 and 5 have ended. See their output"},
      {{.left = {3}, .behind = all.behind}, "rank 3 has ended. See its output"},
      {{.behind = all.behind},
       "ranks 6 and 7 are alive but have not reached barrier. See their output"},
      {{.behind = {7}}, "rank 7 is alive but has not reached barrier. See its output"}};
  for (const auto& [ranks, cause] : cases) EXPECT_EQ(describe_cause(ranks, late, 0), cause);
}

TEST(HeartbeatTest, ARankThatWasLostBeforeItsFirstSignIsNamed) {
  Heartbeat heartbeat(c10::make_intrusive<c10d::HashStore>(), 0);
  EXPECT_EQ(heartbeat.find_cause({3}, {.late_call = "", .otherwise = "nobody knows"}),
            "rank 3 is lost (no sign of life for 2 s). See its output");
}

TEST(DescribeCauseTest, ACauseWithoutARankNamesNoRank) {
  const Heartbeat::Failure late{.late_call = "barrier", .otherwise = "nobody knows"};
  const Heartbeat::Failure other{.late_call = "", .otherwise = "nobody knows"};
  const SortedRanks behind{.behind = {7}};
  EXPECT_EQ(describe_cause({}, late, 0), "nobody knows");
  EXPECT_EQ(describe_cause(behind, other, 0), "nobody knows");
  EXPECT_EQ(describe_cause(behind, late, 7),
            "the ranks make different calls; the call of rank 7 is barrier; "
            "set LINKBOY_DEBUG_COLLECTIVES=1 to see which calls differ");
}

}  // namespace
}  // namespace linkboy::heartbeat_test
