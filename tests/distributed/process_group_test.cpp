#include "linkboy/process_group.hpp"

#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "distributed/agreement.hpp"
#include "distributed/ranks.hpp"
#include "support/expect_error.hpp"
#include "support/temporary_folder.hpp"

namespace linkboy::testing::process_group_test {
namespace {

class ProcessGroupTest : public ::testing::Test {
 protected:
  Accelerator accelerator{together()};
  const ProcessGroup& group = accelerator.process_group();
  const int64_t rank = group.rank();
  const int64_t size = group.size();
};

TEST_F(ProcessGroupTest, ReducesSumsMeansLeastAndMost) {
  const auto reduced = [&](ReduceOp op) {
    auto tensor = torch::tensor({rank + 1.0, -1.0 * static_cast<double>(rank)});
    group.all_reduce(tensor, op);
    return tensor;
  };
  const auto n = static_cast<double>(size);
  const double sum = n * (n + 1) / 2;
  EXPECT_TRUE(torch::allclose(reduced(ReduceOp::sum), torch::tensor({sum, n - sum})));
  EXPECT_TRUE(torch::allclose(reduced(ReduceOp::mean), torch::tensor({sum / n, 1 - sum / n})));
  EXPECT_TRUE(torch::equal(reduced(ReduceOp::min), torch::tensor({1.0, 1.0 - n})));
  EXPECT_TRUE(torch::equal(reduced(ReduceOp::max), torch::tensor({n, 0.0})));
}

TEST_F(ProcessGroupTest, ReducesTensorsWithGapsInPlace) {
  auto base = torch::full({3, 4}, 1.0);
  group.all_reduce(base.t().narrow(0, 1, 2));
  EXPECT_EQ(base.sum().item<double>(), 6.0 + 6.0 * static_cast<double>(size));
}

TEST_F(ProcessGroupTest, AReductionMayBeWaitedForLater) {
  auto a = torch::full({5}, static_cast<double>(rank));
  auto b = torch::ones({2}, torch::kLong);
  auto first = group.all_reduce_later(a, ReduceOp::max);
  auto second = group.all_reduce_later(b);
  first->wait();
  second->wait();
  EXPECT_EQ(a[4].item<int64_t>(), size - 1);
  EXPECT_EQ(b[1].item<int64_t>(), size);
  auto c = torch::ones({3});
  group.reduce_later(c, size - 1)->wait();
  if (rank == size - 1) {
    EXPECT_EQ(c[0].item<int64_t>(), size);
  }
}

TEST_F(ProcessGroupTest, BroadcastsManyTensorsOfAllDtypesAndLayouts) {
  std::vector<torch::Tensor> tensors;
  for (const auto dtype : {torch::kFloat, torch::kBFloat16, torch::kDouble, torch::kLong,
                           torch::kBool, torch::kByte, torch::kComplexFloat}) {
    tensors.push_back(torch::full({2, 3}, rank + 1, torch::kLong).to(dtype));
  }
  tensors.push_back(torch::full({}, rank + 1.5));
  tensors.push_back(torch::full({3, 2}, rank + 1.0).t());
  tensors.push_back(torch::empty({0, 4}));
  const int64_t root = size - 1;
  group.broadcast(tensors, root);
  EXPECT_EQ(tensors[0][1][2].item<int64_t>(), root + 1);
  EXPECT_EQ(tensors[1][0][0].item<int64_t>(), root + 1);
  EXPECT_TRUE(tensors[4].all().item<bool>());
  EXPECT_EQ(tensors[7].item<double>(), static_cast<double>(root) + 1.5);
  EXPECT_EQ(tensors[8].sum().item<double>(), 6.0 * static_cast<double>(root + 1));
}

TEST_F(ProcessGroupTest, GathersTensorsAndBytesByRank) {
  const auto all = group.all_gather(torch::tensor({rank, rank * 10}));
  EXPECT_EQ(all.sizes().vec(), (std::vector<int64_t>{size, 2}));
  for (int64_t r = 0; r < size; ++r) EXPECT_EQ(all[r][1].item<int64_t>(), r * 10);
  EXPECT_EQ(group.all_gather(torch::tensor(true)).sizes().vec(), (std::vector<int64_t>{size}));

  const auto texts = group.all_gather_bytes(std::string(rank * 3, 'x'));
  for (int64_t r = 0; r < size; ++r) EXPECT_EQ(texts[r].size(), static_cast<std::size_t>(r * 3));
  EXPECT_EQ(group.broadcast_bytes(rank == 0 ? "of rank 0" : ""), "of rank 0");
  EXPECT_EQ(group.broadcast_bytes(""), "");
}

TEST_F(ProcessGroupTest, GroupsOfSomeRanksTalkAmongThemselves) {
  const auto first = group.new_group({0, size - 1});
  if (rank == 0 || rank == size - 1) {
    auto tensor = torch::full({1}, static_cast<double>(rank));
    first->all_reduce(tensor);
    EXPECT_EQ(tensor.item<double>(), static_cast<double>(size - 1));
    EXPECT_EQ(first->rank(), rank == 0 ? 0 : 1);
    EXPECT_EQ(first->world_ranks(), (std::vector<int64_t>{0, size - 1}));
  } else {
    EXPECT_EQ(first, nullptr);
  }
  EXPECT_ERROR(group.new_group({1, 0}), "they must be ascending");
  EXPECT_ERROR(group.new_group({0, size}), "from 0 to");
}

TEST_F(ProcessGroupTest, APartOfAPartKnowsItsRanksInTheWorld) {
  const auto last = group.new_group({size - 1});
  if (rank != size - 1) return;
  EXPECT_EQ(last->new_group({0})->world_ranks(), std::vector<int64_t>{size - 1});
}

TEST_F(ProcessGroupTest, ReduceAndBroadcastLeaveTheirArgumentUnchanged) {
  const auto mine = torch::full({2}, rank + 1.0);
  EXPECT_EQ(accelerator.reduce(mine, ReduceOp::max)[1].item<double>(), static_cast<double>(size));
  EXPECT_EQ(accelerator.broadcast(mine)[0].item<double>(), 1.0);
  EXPECT_TRUE(torch::equal(mine, torch::full({2}, rank + 1.0)));
}

TEST_F(ProcessGroupTest, AllRanksMeetTheSameErrorWhereTheyDiffer) {
  EXPECT_ERROR(
      require_same_on_all_ranks(group, "the weather", {"sky: blue", rank == 0 ? "sun" : "rain"}),
      "the ranks differ in the weather: rank 1 has rain, but rank 0 has sun");
  require_same_on_all_ranks(group, "the weather", {"sky: blue"});
}

TEST_F(ProcessGroupTest, GathersRowsOfUnequalNumbers) {
  const auto rows = torch::full({rank, 2}, static_cast<double>(rank));
  const auto all = accelerator.gather_uneven(rows);
  EXPECT_EQ(all.size(0), size * (size - 1) / 2);
  const auto padded = accelerator.gather_uneven(rows, -1.0);
  EXPECT_EQ(padded.size(0), size * (size - 1));
  EXPECT_EQ(padded[0][0].item<double>(), -1.0);
  EXPECT_EQ(accelerator.gather(torch::ones({3, 2})).size(0), 3 * size);
  EXPECT_EQ(accelerator.gather(torch::tensor(2.0)).sizes().vec(), (std::vector<int64_t>{size}));
}

TEST_F(ProcessGroupTest, UnevenLoopsGatherWhatThereIsAndDoNotHang) {
  // Rank r makes r + 1 steps, with one gather in odd and two in even ones.
  int64_t num_rows = 0;
  for (int64_t step = 0; step <= rank; ++step) {
    for (int64_t i = 0; i <= step % 2; ++i) {
      num_rows += accelerator.gather_for_metrics(torch::full({2, 3}, 1.0)).size(0);
    }
  }
  accelerator.join_uneven_loop();
  int64_t last_rows = 0;
  for (int64_t r = 0; r < size; ++r) {
    for (int64_t step = 0; step <= r; ++step) last_rows += 2 * (step % 2 + 1);
  }
  if (rank == size - 1) {
    EXPECT_EQ(num_rows, last_rows);
  }
}

TEST_F(ProcessGroupTest, TheMainProcessGoesFirst) {
  std::vector<std::string> order;
  auto done = torch::zeros({1});
  accelerator.main_process_first([&] {
    if (accelerator.is_local_main_process()) done.fill_(1);
  });
  group.all_reduce(done);
  EXPECT_EQ(done.item<double>(), 1.0);

  const TemporaryFolder own_folder;
  const std::filesystem::path folder = accelerator.broadcast_object(own_folder.path().string());
  int num_missing = 0;
  for (int i = 0; i < 100; ++i) {  // without a barrier the others would be sooner some time
    accelerator.main_process_first([&] {
      const auto file = folder / std::to_string(i);
      if (accelerator.is_local_main_process()) std::ofstream(file) << i;
      num_missing += !std::filesystem::exists(file);
    });
  }
  EXPECT_EQ(num_missing, 0);
  EXPECT_EQ(accelerator.broadcast(torch::tensor(rank)).item<int64_t>(), 0);
  EXPECT_EQ(accelerator.reduce(torch::tensor(1.0), ReduceOp::sum).item<int64_t>(), size);
}

TEST(ProcessGroupDebugTest, NamesTheRankAndTheCallThatDiffer) {
  setenv("LINKBOY_DEBUG_COLLECTIVES", "1", 1);
  {
    Accelerator accelerator{together()};
    const ProcessGroup& group = accelerator.process_group();
    auto same = torch::ones({2});
    group.all_reduce(same);
    auto tensor = group.rank() == 1 ? torch::ones({3}, torch::kDouble) : torch::ones({2});
    EXPECT_ERROR(group.all_reduce(tensor),
                 "rank 1 calls all_reduce(sum, Double[3] on cpu), but rank 0 calls "
                 "all_reduce(sum, Float[2] on cpu)");
    if (group.rank() == 1) {
      EXPECT_ERROR(group.barrier(), "rank 1 calls barrier");
    } else {
      EXPECT_ERROR(group.all_gather(torch::ones({1})), "rank 1 calls barrier");
    }
  }
  unsetenv("LINKBOY_DEBUG_COLLECTIVES");
}

TEST(ProcessGroupAloneTest, EveryCollectiveReturnsWhatItWasGiven) {
  const ProcessGroup group;
  auto tensor = torch::ones({2});
  group.all_reduce(tensor, ReduceOp::mean);
  group.broadcast(tensor);
  group.barrier();
  EXPECT_EQ(group.all_gather(tensor).sizes().vec(), (std::vector<int64_t>{1, 2}));
  EXPECT_EQ(group.all_gather_bytes("a"), (std::vector<std::string>{"a"}));
  EXPECT_EQ(group.broadcast_bytes("b"), "b");
  EXPECT_NE(group.new_group({0}), nullptr);
}

}  // namespace
}  // namespace linkboy::testing::process_group_test
