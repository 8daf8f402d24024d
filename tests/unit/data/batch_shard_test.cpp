// Tests of which samples each rank gets. Small epochs are checked completely, huge epochs at random
// positions.

#include "data/batch_shard.hpp"

#include <c10/util/StringUtil.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <random>
#include <type_traits>
#include <vector>

#include "support/expect_error.hpp"

namespace linkboy::testing::batch_shard_test {
namespace {

using Tail = BatchShard::Tail;
using Positions = std::vector<int64_t>;
using Batches = std::vector<Positions>;
using Random = std::mt19937_64;

constexpr Tail kTails[] = {Tail::wrap, Tail::drop, Tail::uneven};
static_assert(sizeof(BatchShard) <= 64 && std::is_trivially_copyable_v<BatchShard>);

struct Case {
  int64_t num_samples;
  int64_t batch_size;
  int64_t num_ranks;

  BatchShard shard(int64_t rank, Tail tail) const {
    return {num_samples, batch_size, rank, num_ranks, tail};
  }
  int64_t round_size() const { return batch_size * num_ranks; }
};

int64_t draw(Random& random, int64_t least, int64_t most) {
  return std::uniform_int_distribution(least, most)(random);
}

void for_each(const std::vector<Case>& cases, const std::function<void(const Case&)>& check) {
  for (const Case& c : cases) {
    SCOPED_TRACE(c10::str(c.num_samples, " samples, batches of ", c.batch_size, ", ", c.num_ranks,
                          " ranks"));
    check(c);
  }
}

/// Returns all cases with up to 20 samples, batches of up to 6 and up to 5 ranks, and random larger
/// cases. Half of the random cases end at most one sample away from the end of a round.
std::vector<Case> small_cases() {
  std::vector<Case> cases;
  for (int64_t i = 0; i < 600; ++i) cases.push_back({i % 20 + 1, i / 20 % 6 + 1, i / 120 + 1});
  Random random(1);
  for (int64_t i = 0; i < 200; ++i) {
    Case c{draw(random, 1, 3'000), draw(random, 1, 40), draw(random, 1, 20)};
    if (i % 2) c.num_samples = std::max<int64_t>(1, i % 8 * c.round_size() + draw(random, -1, 1));
    cases.push_back(c);
  }
  return cases;
}

/// Returns cases of all orders of magnitude up to 10^12 samples and 4,096 ranks.
std::vector<Case> huge_cases() {
  constexpr int64_t kSamples = 1'000'000'000'000;
  std::vector<Case> cases{
      {kSamples, 1, 4'096}, {kSamples - 1, 1'000'000'000, 4'096}, {1, kSamples, 4'096}};
  Random random(2);
  const auto magnitude = [&](double most) {
    const double exponent = std::uniform_real_distribution<double>(0.0, std::log10(most))(random);
    return std::llround(std::pow(10.0, exponent));
  };
  while (cases.size() < 60) cases.push_back({magnitude(1e12), magnitude(1e6), magnitude(4'096.0)});
  return cases;
}

void append(Positions& all, const Positions& more) {
  all.insert(all.end(), more.begin(), more.end());
}

Positions batch_of(const BatchShard& shard, int64_t k) {
  Positions positions;
  for (int64_t i = 0; i < shard.size_of_batch(k); ++i) positions.push_back(shard.position(k, i));
  return positions;
}

Batches batches_of(const Case& c, int64_t rank, Tail tail) {
  const auto shard = c.shard(rank, tail);
  Batches batches;
  for (int64_t k = 0; k < shard.num_batches(); ++k) batches.push_back(batch_of(shard, k));
  return batches;
}

Positions round_of(const Case& c, Tail tail, int64_t u) {
  Positions positions;
  for (int64_t r = 0; r < c.num_ranks; ++r) append(positions, batch_of(c.shard(r, tail), u));
  return positions;
}

Positions epoch_of(const Case& c, Tail tail) {
  Positions positions;
  const int64_t num_rounds = c.shard(0, tail).num_rounds();
  for (int64_t u = 0; u < num_rounds; ++u) append(positions, round_of(c, tail, u));
  return positions;
}

/// Returns `count` positions 0, 1, 2, ..., which restart at 0 after `modulus` - 1.
Positions counted(int64_t count, int64_t modulus) {
  Positions positions(count);
  for (int64_t i = 0; i < count; ++i) positions[i] = i % modulus;
  return positions;
}

TEST(BatchShardTest, OneProcessReadsAllBatches) {
  EXPECT_EQ(batches_of({7, 4, 1}, 0, Tail::uneven), (Batches{{0, 1, 2, 3}, {4, 5, 6}}));
  EXPECT_EQ(batches_of({7, 4, 1}, 0, Tail::drop), (Batches{{0, 1, 2, 3}}));
}

TEST(BatchShardTest, EqualsTheBatchSamplerShardOfAccelerate) {
  // The values come from accelerate 1.15.0. Tail::wrap, drop and uneven correspond to (drop_last,
  // even_batches) = (false, true), (true, true) and (false, false). The cases are a round without a
  // batch for the last rank, a batch that wraps around, and less data than a round.
  const Case short_of_a_rank{10, 2, 3};
  EXPECT_EQ(batches_of(short_of_a_rank, 1, Tail::wrap), (Batches{{2, 3}, {8, 9}}));
  EXPECT_EQ(batches_of(short_of_a_rank, 2, Tail::wrap), (Batches{{4, 5}, {0, 1}}));
  EXPECT_EQ(batches_of(short_of_a_rank, 0, Tail::drop), (Batches{{0, 1}}));
  EXPECT_EQ(batches_of(short_of_a_rank, 2, Tail::uneven), (Batches{{4, 5}}));
  const Case wraps_in_a_batch{7, 3, 2};
  EXPECT_EQ(batches_of(wraps_in_a_batch, 0, Tail::wrap), (Batches{{0, 1, 2}, {6, 0, 1}}));
  EXPECT_EQ(batches_of(wraps_in_a_batch, 1, Tail::wrap), (Batches{{3, 4, 5}, {2, 3, 4}}));
  const Case less_than_a_round{3, 2, 4};
  EXPECT_EQ(batches_of(less_than_a_round, 1, Tail::wrap), (Batches{{2, 0}}));
  EXPECT_EQ(batches_of(less_than_a_round, 0, Tail::drop), Batches{});
  EXPECT_EQ(batches_of(less_than_a_round, 1, Tail::uneven), (Batches{{2}}));
  EXPECT_EQ(batches_of(less_than_a_round, 2, Tail::uneven), Batches{});
}

// epoch_of lists the rounds in order, and within each round the ranks in order. So the positions of
// each rank ascend too.
TEST(BatchShardTest, UnevenGivesEachSampleToOneRankOnceInAscendingOrder) {
  for_each(small_cases(), [](const Case& c) {
    EXPECT_EQ(epoch_of(c, Tail::uneven), counted(c.num_samples, c.num_samples));
  });
}

TEST(BatchShardTest, WrapFillsTheLastRoundWithTheFirstSamplesAndDropSkipsIt) {
  for_each(small_cases(), [](const Case& c) {
    const int64_t dropped_size = c.num_samples - c.num_samples % c.round_size();
    const int64_t wrapped_size = dropped_size + (dropped_size < c.num_samples ? c.round_size() : 0);
    EXPECT_EQ(epoch_of(c, Tail::wrap), counted(wrapped_size, c.num_samples));
    EXPECT_EQ(epoch_of(c, Tail::drop), counted(dropped_size, c.num_samples));
  });
}

TEST(BatchShardTest, WrapAndDropGiveAllRanksTheSameNumberOfFullBatches) {
  for_each(small_cases(), [](const Case& c) {
    for (Tail tail : {Tail::wrap, Tail::drop}) {
      for (int64_t rank = 0; rank < c.num_ranks; ++rank) {
        const auto shard = c.shard(rank, tail);
        EXPECT_EQ(shard.num_batches(), c.shard(0, tail).num_rounds());
        EXPECT_EQ(shard.num_samples(), shard.num_batches() * c.batch_size);
        for (const auto& batch : batches_of(c, rank, tail)) {
          EXPECT_EQ(batch.size(), static_cast<std::size_t>(c.batch_size));
        }
      }
    }
  });
}

// Because of this, training with several ranks has the same losses as training with one.
TEST(BatchShardTest, ARoundOfAllRanksEqualsABatchOfOneProcess) {
  for_each(small_cases(), [](const Case& c) {
    const Case whole{c.num_samples, c.round_size(), 1};
    for (Tail tail : kTails) {
      const auto one_process = batches_of(whole, 0, tail);
      const auto num_rounds = static_cast<int64_t>(one_process.size());
      EXPECT_EQ(c.shard(0, tail).num_rounds(), num_rounds);
      for (int64_t u = 0; u < num_rounds; ++u) EXPECT_EQ(round_of(c, tail, u), one_process[u]);
    }
  });
}

TEST(BatchShardTest, UnevenRanksDifferByOneBatchThatTheFirstRanksHave) {
  for_each(small_cases(), [](const Case& c) {
    int64_t most = c.shard(0, Tail::uneven).num_rounds();
    for (int64_t rank = 0; rank < c.num_ranks; ++rank) {
      const auto shard = c.shard(rank, Tail::uneven);
      EXPECT_LE(shard.num_batches(), most);
      EXPECT_GE(shard.num_batches(), shard.num_rounds() - (rank == 0 ? 0 : 1));
      EXPECT_EQ(shard.size_of_batch(shard.num_batches()), 0);
      most = shard.num_batches();
    }
  });
}

// Each checked position is on the expected rank. The ranks together have exactly as many samples as
// there are positions, so no position is on two ranks.
TEST(BatchShardTest, SharesOfHugeEpochsAreDisjointCompleteAndEven) {
  Random random(3);
  for_each(huge_cases(), [&](const Case& c) {
    for (Tail tail : kTails) {
      const int64_t num_rounds = c.shard(0, tail).num_rounds();
      int64_t total = 0;
      for (int64_t rank = 0; rank < c.num_ranks; ++rank) {
        const auto shard = c.shard(rank, tail);
        ASSERT_EQ(shard.num_rounds(), num_rounds);
        ASSERT_TRUE(tail == Tail::uneven || shard.num_samples() == num_rounds * c.batch_size);
        total += shard.num_samples();
      }
      EXPECT_LT(std::abs(total - c.num_samples), c.round_size());
      EXPECT_TRUE(tail == Tail::drop || total >= c.num_samples);
      EXPECT_TRUE(tail == Tail::wrap || total <= c.num_samples);
      Positions places{0, 1, c.batch_size, c.num_samples - 1, total / 2, total - 1};
      for (int i = 0; i < 50; ++i) places.push_back(draw(random, 0, std::max(total, int64_t{1})));
      for (int64_t place : places) {
        if (place < 0 || place >= total) continue;
        const auto shard = c.shard(place / c.batch_size % c.num_ranks, tail);
        const int64_t k = place / c.round_size();
        const int64_t i = place % c.batch_size;
        ASSERT_LT(k, shard.num_batches());
        ASSERT_LT(i, shard.size_of_batch(k));
        EXPECT_EQ(shard.position(k, i), place % c.num_samples);
      }
    }
  });
}

TEST(BatchShardTest, TheLargestSizesDoNotOverflow) {
  constexpr int64_t kMost = std::numeric_limits<int64_t>::max();
  const Case one_batch{1'000'000'000'000, kMost, 4'096};
  EXPECT_EQ(one_batch.shard(0, Tail::uneven).num_samples(), 1'000'000'000'000);
  EXPECT_EQ(one_batch.shard(0, Tail::drop).num_samples(), 0);
  EXPECT_EQ(BatchShard(kMost, 1, 0, 1, Tail::uneven).position(kMost - 1, 0), kMost - 1);
  EXPECT_EQ(BatchShard(kMost, kMost, 0, kMost, Tail::uneven).num_samples(), kMost);
  EXPECT_EQ(BatchShard(kMost - 6, 2, 2, 3, Tail::wrap).num_rounds(), (kMost - 1) / 6);
  EXPECT_EQ(BatchShard(kMost - 6, 2, 2, 3, Tail::wrap).position((kMost - 1) / 6 - 1, 1), 4);
}

TEST(BatchShardTest, RefusesAnInvalidShard) {
  EXPECT_ERROR(BatchShard(0, 1, 0, 1, Tail::uneven), "samples of an epoch is 0; it must be at");
  EXPECT_ERROR(BatchShard(1, 0, 0, 1, Tail::uneven), "batch_size is 0; it must be at least 1");
  EXPECT_ERROR(BatchShard(1, 1, 0, 0, Tail::drop), "number of ranks is 0; it must be at least 1");
  EXPECT_ERROR(BatchShard(1, 1, 2, 2, Tail::wrap), "the rank is 2; it must be 0 to 1");
  EXPECT_ERROR(BatchShard(1, 1, -1, 2, Tail::wrap), "the rank is -1; it must be 0 to 1");
  EXPECT_ERROR(BatchShard(1, int64_t{1} << 62, 0, 2, Tail::wrap), "on 2 ranks it must be at most");
}

}  // namespace
}  // namespace linkboy::testing::batch_shard_test
