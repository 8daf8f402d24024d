#include "linkboy/distributed/process_group.hpp"

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <thread>

#include "distributed/agreement.hpp"
#include "distributed/process_group_implementation.hpp"
#include "distributed/ranks.hpp"
#include "linkboy/checkpoint/checkpoint.hpp"
#include "support/environment_variable.hpp"
#include "support/expect_error.hpp"

namespace linkboy::testing::process_group_test {
namespace {

using namespace std::chrono_literals;
using ProcessGroupTest = GroupTest;

TEST_F(ProcessGroupTest, ReducesSumsMeansMinimaAndMaxima) {
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

TEST_F(ProcessGroupTest, AMeanOfIntegersIsAnErrorBeforeTheCall) {
  for (const auto dtype : {torch::kLong, torch::kInt, torch::kBool}) {
    const auto tensor = torch::ones({2}, dtype);
    EXPECT_OPTION_ERROR(accelerator.reduce(tensor, ReduceOp::mean), "dtype cannot hold a mean");
    EXPECT_OPTION_ERROR(group.reduce_later(tensor, 0, ReduceOp::mean), "dtype cannot hold a mean");
    EXPECT_OPTION_ERROR(ProcessGroup().all_reduce(tensor, ReduceOp::mean), "ReduceOp::sum");
  }
  EXPECT_EQ(accelerator.reduce(torch::ones({1}, torch::kLong)).item<int64_t>(), size);
}

TEST_F(ProcessGroupTest, AReductionCanBeAwaitedLater) {
  auto a = torch::full({5}, static_cast<double>(rank));
  auto b = torch::ones({2}, torch::kLong);
  auto first = group.all_reduce_async(a, ReduceOp::max);
  auto second = group.all_reduce_async(b);
  first->wait();
  second->wait();
  EXPECT_EQ(a[4].item<int64_t>(), size - 1);
  EXPECT_EQ(b[1].item<int64_t>(), size);
  auto c = torch::ones({3});
  group.reduce_later(c, size - 1)->wait();
  EXPECT_TRUE(rank != size - 1 || c[0].item<int64_t>() == size) << c;
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

TEST_F(ProcessGroupTest, ReducesManyTensorsOfAllDtypesAndLayouts) {
  const auto mine = [&](c10::IntArrayRef sizes, c10::ScalarType dtype) {
    return torch::full(sizes, rank + 1, torch::kLong).to(dtype);
  };
  const torch::Tensor base = mine({4, 3}, torch::kFloat);
  const std::vector<torch::Tensor> tensors = {
      mine({2, 3}, torch::kBFloat16), mine({5}, torch::kFloat), mine({}, torch::kLong),
      mine({3}, torch::kDouble),      base.t().slice(1, 0, 2),  mine({0, 4}, torch::kFloat),
      mine({1 << 19}, torch::kFloat), mine({7}, torch::kFloat)};
  group.all_reduce(tensors);
  const double sum = static_cast<double>(size * (size + 1)) / 2;
  for (const auto& tensor : tensors) EXPECT_TRUE(tensor.eq(sum).all().item<bool>()) << tensor;
  EXPECT_TRUE(base.slice(0, 2).eq(static_cast<double>(rank + 1)).all().item<bool>());
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

TEST_F(ProcessGroupTest, GroupsOfSomeRanksCommunicateSeparately) {
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

TEST_F(ProcessGroupTest, ANestedGroupReportsItsGlobalRanks) {
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

TEST_F(ProcessGroupTest, AllRanksThrowTheSameErrorIfTheyDiffer) {
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
  const auto long_rows = accelerator.gather_uneven(rows.repeat({1, 200}));
  EXPECT_TRUE(torch::equal(long_rows, all.repeat({1, 200})));
  EXPECT_EQ(accelerator.gather(torch::ones({3, 2})).size(0), 3 * size);
  EXPECT_EQ(accelerator.gather(torch::tensor(2.0)).sizes().vec(), (std::vector<int64_t>{size}));
}

TEST_F(ProcessGroupTest, UnevenLoopsGatherWithoutHanging) {
  // Rank r makes r + 1 steps, with one gather in even steps and two in odd ones.
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
  EXPECT_TRUE(rank != size - 1 || num_rows == last_rows) << num_rows;
}

TEST_F(ProcessGroupTest, GathersRowsOfAnyDtypeAndLength) {
  for (const auto dtype : {torch::kFloat, torch::kBFloat16, torch::kDouble, torch::kLong,
                           torch::kBool, torch::kByte, torch::kComplexDouble}) {
    for (const int64_t width : {0, 1, 3, 200}) {
      const auto rows_of = [&](int64_t of_rank) {
        return torch::arange(of_rank * width).view({of_rank, width}).to(dtype);
      };
      std::vector<torch::Tensor> expected;
      for (int64_t r = 0; r < size; ++r) expected.push_back(rows_of(r));
      // A view: only its part of the storage is sent.
      const auto whole = torch::cat({rows_of(rank), rows_of(rank)}, 1);
      const auto all = accelerator.gather_for_metrics(whole.narrow(1, width, width));
      EXPECT_TRUE(torch::equal(all, torch::cat(expected))) << dtype << " " << width;
    }
  }
  EXPECT_TRUE(
      torch::equal(accelerator.gather_for_metrics(torch::tensor(rank)), torch::arange(size)));
  // Conjugation is only a flag on the tensor.
  const auto imaginary = torch::complex(torch::zeros({1}), torch::ones({1}));
  EXPECT_TRUE(torch::equal(accelerator.gather_for_metrics(imaginary.conj()),
                           imaginary.conj().expand({size}).resolve_conj()));
}

TEST_F(ProcessGroupTest, GathersAFewRowsInOneCollective) {
  const auto count = [&](const auto& gather) {
    const uint64_t before = num_collectives(group);
    gather();
    return num_collectives(group) - before;
  };
  const auto few = torch::ones({rank + 1, 8});
  const auto many = torch::ones({rank + 1, 1000});
  EXPECT_EQ(count([&] { (void)accelerator.gather_for_metrics(few); }), 1U);
  EXPECT_EQ(count([&] { (void)accelerator.gather_for_metrics(many); }), 2U);
  EXPECT_EQ(count([&] { (void)accelerator.gather_uneven(few, -1.0); }), 1U);
  EXPECT_EQ(count([&] { (void)accelerator.gather(torch::ones({1000})); }), 2U);
  EXPECT_EQ(count([&] { (void)accelerator.all_gather_bytes("few bytes"); }), 1U);
}

TEST_F(ProcessGroupTest, TheMainProcessGoesFirst) {
  std::vector<std::string> order;
  auto done = torch::zeros({1});
  accelerator.main_process_first([&] {
    if (accelerator.is_local_main_process()) done.fill_(1);
  });
  group.all_reduce(done);
  EXPECT_EQ(done.item<double>(), 1.0);

  const SharedFolder folder;
  int num_missing = 0;
  for (int i = 0; i < 100; ++i) {  // repeated, because a missing barrier shows only sometimes
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
  const EnvironmentVariable debug("LINKBOY_DEBUG_COLLECTIVES", "1");
  const Accelerator accelerator(together());
  const ProcessGroup& group = accelerator.process_group();
  group.all_reduce(torch::ones({2}));
  const bool is_other = group.rank() == 1;
  EXPECT_ERROR(group.all_reduce(is_other ? torch::ones({3}, torch::kDouble) : torch::ones({2})),
               "rank 1 calls all_reduce(sum, Double[3] on cpu), but rank 0 calls "
               "all_reduce(sum, Float[2] on cpu)");
  EXPECT_ERROR(is_other ? group.barrier() : (void)group.all_gather(torch::ones({1})),
               "rank 1 calls barrier");
}

/// A group whose last rank is late for a call.
class LateRank {
 public:
  explicit LateRank(AcceleratorOptions options) : options_(std::move(options)) {
    options_.distributed.timeout = 2s;
    accelerator_ = std::make_unique<Accelerator>(options_);
    EXPECT_EQ(sum(), static_cast<double>(group().size()));
  }

  /// Returns immediately on the other ranks. On the last rank, returns after the others have
  /// noticed (or after 60 s).
  void keep_the_others_waiting() const {
    const auto* implementation = group().implementation();
    for (int i = 0; i < 600 && is_late() && !implementation->has_failed(); ++i) {
      std::this_thread::sleep_for(100ms);
    }
  }

  const ProcessGroup& group() const { return accelerator_->process_group(); }
  bool is_late() const { return group().rank() == group().size() - 1; }
  std::string complaint() const {
    return c10::str("rank ", group().size() - 1,
                    " is alive but has not reached all_reduce (timeout 2 s). See its output");
  }

  at::Tensor sum_on_device() const {
    auto tensor = torch::ones({1}, accelerator_->device());
    group().all_reduce(tensor);
    return tensor;
  }
  double sum() const { return sum_on_device().item<double>(); }

  void meet_again() {
    const int64_t n = group().size();
    accelerator_.reset();
    options_.distributed.timeout = 60s;
    EXPECT_EQ(Accelerator(options_).num_processes(), n);
  }

 private:
  AcceleratorOptions options_;
  std::unique_ptr<Accelerator> accelerator_;
};

TEST(LateRankTest, IsNamedByTheOtherRanks) {
  LateRank ranks({.device = "cpu"});
  (void)ranks.group().new_group({0});  // not an additional call of rank 0
  ranks.keep_the_others_waiting();
  EXPECT_ERROR((ranks.sum(), ranks.group().barrier()), ranks.complaint());
  EXPECT_ERROR(ranks.group().barrier(), ranks.complaint());
  ranks.meet_again();
}

// NCCL does not report an error here: the host waits for a value, and the next call reports the
// cause.
TEST(LateRankTest, IsNamedByRanksThatWaitForTheDevice_MultiCUDA) {
  LateRank ranks({.device = "cuda", .distributed = {.backend = Backend::nccl}});
  ranks.keep_the_others_waiting();
  EXPECT_ERROR((ranks.sum(), ranks.group().barrier()), ranks.complaint());
  ranks.meet_again();
}

// When the collective is cancelled, the copy to the host completes with meaningless values.
TEST(LateRankTest, CancelledReductionsAreNeverCheckpointed_MultiCUDA) {
  LateRank ranks({.device = "cuda", .distributed = {.backend = Backend::nccl}});
  ranks.keep_the_others_waiting();
  const TemporaryFolder folder;
  const auto path = folder.path() / "sum.pt";
  const auto save = [&] {
    StateDict contents;
    contents.set("sum", ranks.sum_on_device());
    write_checkpoint(path, contents);
  };
  EXPECT_ERROR(save(), ranks.is_late() ? ranks.complaint() : "is not written: a rank is lost");
  EXPECT_FALSE(std::filesystem::exists(path));
  ranks.meet_again();
  write_checkpoint(path, StateDict());
}

// The group can end in this way after an exception, or at the end of a hand-written loop.
TEST(LateRankTest, DoesNotDelayTheEndOfAGroup_MultiCUDA) {
  LateRank ranks({.device = "cuda", .distributed = {.backend = Backend::nccl}});
  if (!ranks.is_late()) ranks.sum_on_device();
  ranks.keep_the_others_waiting();
  ranks.meet_again();
}

// ---- Several Accelerators in one process

AcceleratorOptions with_timeout(std::chrono::milliseconds timeout) {
  AcceleratorOptions options = together();
  options.distributed.timeout = timeout;
  return options;
}

void expect_works(const Accelerator& accelerator) {
  EXPECT_EQ(accelerator.reduce(torch::ones({1}, torch::kLong)).item<int64_t>(), num_ranks());
}

TEST(AcceleratorsTest, ASecondOneUsesItsOwnTimeout) {
  const Accelerator first(with_timeout(60s));
  const Accelerator second(with_timeout(20s));
  EXPECT_EQ(second.process_group().timeout(), 20s);
  EXPECT_EQ(first.process_group().timeout(), 60s);
  expect_works(second);
  expect_works(first);
}

TEST(AcceleratorsTest, ShareAGroupIfAllRanksHaveIt) {
  const Accelerator first(with_timeout(25s));
  const Accelerator second(with_timeout(25s));
  EXPECT_EQ(&first.process_group(), &second.process_group());
}

TEST(AcceleratorsTest, OneThatASingleRankKeepsDoesNotPreventAnother) {
  auto first = std::make_unique<Accelerator>(with_timeout(15s));
  if (this_rank() != 0) first.reset();
  const Accelerator second(with_timeout(15s));
  expect_works(second);
  const Accelerator third(with_timeout(15s));
  EXPECT_EQ(&third.process_group(), &second.process_group());
  expect_works(third);
}

TEST(ProcessGroupAloneTest, EveryCollectiveReturnsItsInput) {
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
