#include "distributed/ranks.hpp"
#include "linkboy/distributed/process_group.hpp"
#include "support/expect_error.hpp"

namespace linkboy::testing::row_exchange_test {
namespace {

using RowExchangeTest = GroupTest;

TEST_F(RowExchangeTest, ReducesTheRowsOfAllRanksAndGivesEachItsOwn) {
  const auto device = accelerator.device();
  // Row r of rank s is s * 10 + r.
  const auto rows =
      (torch::arange(size, torch::kFloat).unsqueeze(1) + 10.0 * rank).expand({size, 3}).to(device);
  const auto n = static_cast<double>(size);
  const double sum = 10 * n * (n - 1) / 2 + n * static_cast<double>(rank);
  EXPECT_TRUE(torch::equal(group.reduce_scatter(rows).cpu(), torch::full({3}, sum)));
  EXPECT_TRUE(
      torch::allclose(group.reduce_scatter(rows, ReduceOp::mean).cpu(), torch::full({3}, sum / n)));
  EXPECT_TRUE(torch::equal(group.reduce_scatter(rows, ReduceOp::max).cpu(),
                           torch::full({3}, 10 * (n - 1) + static_cast<double>(rank))));
  EXPECT_TRUE(torch::equal(group.reduce_scatter(rows, ReduceOp::min).cpu(),
                           torch::full({3}, static_cast<float>(rank))));
  EXPECT_TRUE(torch::equal(rows[0].cpu(), torch::full({3}, 10.0F * static_cast<float>(rank))));
  for (const auto dtype : {torch::kDouble, torch::kBFloat16, torch::kLong}) {
    EXPECT_EQ(group.reduce_scatter(torch::ones({size, 2}, dtype).to(device))[1].item<int64_t>(),
              size);
  }
  EXPECT_OPTION_ERROR(group.reduce_scatter(torch::ones({size + 1, 2})),
                      "must be that of the ranks");
  EXPECT_OPTION_ERROR(group.reduce_scatter(torch::ones({size}, torch::kLong), ReduceOp::mean),
                      "cannot hold a mean");
  EXPECT_EQ(group.reduce_scatter(torch::ones({size, 0})).numel(), 0);
}

TEST_F(RowExchangeTest, SumsOfRowsAddTheRanksInTheirOrder) {
  torch::manual_seed(7 + rank);
  const auto rows = torch::randn({size, 1000});
  auto expected = torch::zeros({1000});
  const auto all = group.all_gather(rows);  // [ranks, rows, 1000]
  expected.copy_(all[0][rank]);
  for (int64_t r = 1; r < size; ++r) expected.add_(all[r][rank]);
  EXPECT_TRUE(torch::equal(group.reduce_scatter(rows), expected));
}

TEST_F(RowExchangeTest, EachRankSendsARowToEachOther) {
  const auto rows = torch::arange(size, accelerator.device()) * 100 + rank;
  const auto expected = torch::arange(size) + 100 * rank;
  EXPECT_TRUE(torch::equal(group.all_to_all(rows).cpu(), expected));
  EXPECT_OPTION_ERROR(group.all_to_all(torch::ones({})), "must be that of the ranks");
  EXPECT_TRUE(torch::equal(ProcessGroup().all_to_all(torch::ones({1, 2})), torch::ones({1, 2})));
}

TEST_F(RowExchangeTest, GathersIntoGivenMemoryLater) {
  auto all = torch::zeros({size, 2}, accelerator.device());
  const auto mine = torch::full({2}, static_cast<double>(rank), all.options());
  group.all_gather_later(all, mine)->wait();
  EXPECT_TRUE(torch::equal(all.cpu().select(1, 1), torch::arange(size, torch::kFloat)));
}

TEST_F(RowExchangeTest, MessagesArriveInTheirOrder) {
  const auto device = accelerator.device();
  const auto send = [&](double value, int64_t to) {
    group.send(torch::full({3}, value, device), to);
  };
  const auto received = [&](int64_t from) {
    const auto whole = torch::zeros({3, 2}, device);
    group.recv(whole.select(1, 0), from);  // with gaps in memory
    return whole.cpu()[2][0].item<double>();
  };
  // A chain through all ranks, and back from the last to the first.
  if (rank > 0) {
    EXPECT_EQ(received(rank - 1), static_cast<double>(rank));
    EXPECT_EQ(received(rank - 1), 0.5);
  }
  if (rank + 1 < size) {
    send(static_cast<double>(rank) + 1, rank + 1);
    send(0.5, rank + 1);
  }
  if (rank == size - 1) send(7, 0);
  if (rank == 0) {
    EXPECT_EQ(received(size - 1), 7);
  }
  EXPECT_OPTION_ERROR(group.send(torch::ones({1}), rank), "must be another rank");
  EXPECT_OPTION_ERROR(group.recv(torch::ones({1}), size), "must be another rank");
  EXPECT_OPTION_ERROR(ProcessGroup().send(torch::ones({1}), 0), "must be another rank");
}

}  // namespace
}  // namespace linkboy::testing::row_exchange_test
