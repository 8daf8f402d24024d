#include "linkboy/distributed/device_mesh.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <set>

#include "support/expect_error.hpp"

namespace linkboy::testing::device_mesh_test {
namespace {

using Ranks = std::vector<int64_t>;

constexpr auto kDims = enum_names(MeshDim{}).second;

TEST(MeshLayoutTest, TheInnermostDimensionHasNeighbouringRanks) {
  const MeshLayout layout({.data = 2, .tensor = 2, .pipeline = 2}, 8, /*is_sharded=*/false);
  EXPECT_EQ(layout.ranks(5, {MeshDim::tensor}), (Ranks{4, 5}));
  EXPECT_EQ(layout.ranks(5, {MeshDim::data}), (Ranks{5, 7}));
  EXPECT_EQ(layout.ranks(5, {MeshDim::pipeline}), (Ranks{1, 5}));
  EXPECT_EQ(layout.ranks(5, {MeshDim::tensor, MeshDim::data}), (Ranks{4, 5, 6, 7}));
  EXPECT_EQ(layout.ranks(5, {MeshDim::tensor, MeshDim::pipeline}), (Ranks{0, 1, 4, 5}));
  EXPECT_EQ(layout.ranks(5, {}), (Ranks{5}));
  EXPECT_EQ(layout.describe(5), "pipeline 1, data 0, tensor 1");
}

TEST(MeshLayoutTest, GroupsOf1024RanksPartitionThem) {
  const ParallelOptions options{
      .data = 4, .shard = 8, .tensor = 4, .pipeline = 4, .context = 2, .expert = 16};
  constexpr int64_t kNumRanks = 1024;
  const MeshLayout layout(options, kNumRanks, /*is_sharded=*/true);
  const auto expect_partition = [&](const auto& ranks_of, int64_t size) {
    for (int64_t rank = 0; rank < kNumRanks; ++rank) {
      const Ranks ranks = ranks_of(rank);
      ASSERT_EQ(std::ssize(ranks), size);
      ASSERT_TRUE(std::ranges::is_sorted(ranks));
      ASSERT_EQ(std::ranges::count(ranks, rank), 1);
      ASSERT_EQ(ranks_of(ranks.front()), ranks);
      ASSERT_EQ(ranks_of(ranks.back()), ranks);
    }
  };
  // All 32 sets of dimensions.
  for (int set = 0; set < 32; ++set) {
    std::vector<MeshDim> dims;
    int64_t size = 1;
    for (std::size_t i = 0; i < kDims.size(); ++i) {
      if ((set >> i & 1) == 0) continue;
      dims.push_back(kDims[i]);
      size *= layout.size(kDims[i]);
    }
    expect_partition([&](int64_t rank) { return layout.ranks(rank, dims); }, size);
  }
  expect_partition([&](int64_t rank) { return layout.expert_ranks(rank); }, 16);
  // The coordinates identify a rank.
  std::set<std::string> places;
  for (int64_t rank = 0; rank < kNumRanks; ++rank) places.insert(layout.describe(rank));
  EXPECT_EQ(std::ssize(places), kNumRanks);
  // Experts are shared by ranks that differ in data, shard and context only.
  for (const int64_t member : layout.expert_ranks(777)) {
    EXPECT_EQ(layout.index(member, MeshDim::tensor), layout.index(777, MeshDim::tensor));
    EXPECT_EQ(layout.index(member, MeshDim::pipeline), layout.index(777, MeshDim::pipeline));
  }
}

TEST(MeshLayoutTest, SizesThatAreLeftOut) {
  const auto sizes = [](const ParallelOptions& options, int64_t num_ranks, bool is_sharded) {
    const MeshLayout layout(options, num_ranks, is_sharded);
    return Ranks{layout.size(MeshDim::data), layout.size(MeshDim::shard)};
  };
  EXPECT_EQ(sizes({}, 6, false), (Ranks{6, 1}));
  EXPECT_EQ(sizes({}, 6, true), (Ranks{1, 6}));
  EXPECT_EQ(sizes({.data = 2}, 6, true), (Ranks{2, 3}));
  EXPECT_EQ(sizes({.shard = 2}, 6, true), (Ranks{3, 2}));
  EXPECT_EQ(sizes({.shard = 1}, 6, false), (Ranks{6, 1}));
  EXPECT_EQ(sizes({.tensor = 3}, 6, false), (Ranks{2, 1}));
  EXPECT_EQ(sizes({.tensor = 3}, 6, true), (Ranks{1, 2}));
  EXPECT_EQ(sizes({}, 1, true), (Ranks{1, 1}));
}

TEST(MeshLayoutTest, RefusesSizesThatDoNotFit) {
  EXPECT_OPTION_ERROR(MeshLayout({.data = 2, .tensor = 2}, 6, false),
                      "parallel is \"data=2,tensor=2\", but there are 6 processes");
  EXPECT_OPTION_ERROR(MeshLayout({.tensor = 4}, 6, false), "there are 6 processes");
  EXPECT_OPTION_ERROR(MeshLayout({.tensor = 8}, 6, false), "there are 6 processes");
  EXPECT_OPTION_ERROR(MeshLayout({.tensor = 0}, 6, false), "parallel.tensor is 0");
  EXPECT_OPTION_ERROR(MeshLayout({.data = -1}, 6, false), "parallel.data is -1");
  EXPECT_OPTION_ERROR(MeshLayout({.tensor = int64_t{1} << 62, .pipeline = 4}, 6, false),
                      "too large");
  EXPECT_OPTION_ERROR(MeshLayout({.expert = 4}, 6, false), "parallel.expert is 4; it must divide");
  EXPECT_OPTION_ERROR(MeshLayout({.shard = 2}, 6, false), "only zero_stage 3 distributes");
  EXPECT_OPTION_ERROR(MeshLayout({.expert = 0}, 6, false), "parallel.expert is 0");
}

TEST(ParallelOptionsTest, HasAText) {
  const auto parsed = from_text<ParallelOptions>("shard=2,data=3,expert=6");
  EXPECT_EQ(parsed.shard, 2);
  EXPECT_EQ(parsed.data, 3);
  EXPECT_EQ(parsed.expert, 6);
  EXPECT_EQ(parsed.tensor, 1);
  EXPECT_EQ(to_text(parsed), "data=3,shard=2,expert=6");
  EXPECT_EQ(to_text(from_text<ParallelOptions>("")), "");
  for (const std::string wrong : {"shard", "share=2", "shard=2,", "=2"}) {
    EXPECT_OPTION_ERROR(from_text<ParallelOptions>(wrong), "it must be a list such as");
  }
  EXPECT_ERROR(from_text<ParallelOptions>("shard=two"), "must be an integer");
}

TEST(DeviceMeshTest, AProcessAloneIsEveryGroup) {
  const DeviceMesh mesh(std::make_shared<ProcessGroup>(), {});
  EXPECT_EQ(mesh.group({MeshDim::data})->size(), 1);
  EXPECT_EQ(mesh.group({})->size(), 1);
  EXPECT_EQ(mesh.expert_group()->size(), 1);
  EXPECT_EQ(mesh.coordinates(), "");
  EXPECT_EQ(mesh.index(MeshDim::tensor), 0);
}

}  // namespace
}  // namespace linkboy::testing::device_mesh_test
