// Ranks on one host average gradients through shared memory. The result is bit-identical to that of
// Gloo.

#include <c10/util/ScopeExit.h>
#include <sys/resource.h>

#include <cmath>

#include "distributed/process_group_implementation.hpp"
#include "distributed/ranks.hpp"
#include "distributed/shared_memory.hpp"
#include "distributed/shared_memory_hook.hpp"
#include "support/environment_variable.hpp"

namespace linkboy::testing::shared_memory_test {
namespace {

/// If `applies`, sets a resource limit of this process until the end of the result's scope.
auto limit_if(bool applies, __rlimit_resource resource, rlim_t value) {
  rlimit before{};
  getrlimit(resource, &before);
  const rlimit changed{applies ? value : before.rlim_cur, before.rlim_max};
  setrlimit(resource, &changed);
  return c10::make_scope_exit([=] { setrlimit(resource, &before); });
}

/// Number of shared memory files that this process holds open.
int64_t num_files() {
  int64_t count = 0;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
    std::error_code closed_since;
    const auto target = std::filesystem::read_symlink(entry.path(), closed_since).string();
    if (target.starts_with("/memfd:linkboy")) ++count;
  }
  return count;
}

struct SharedMemoryTest : GroupTest {
  /// The pair of ranks that contains this rank; null for a last rank without a partner. Collective.
  std::shared_ptr<const ProcessGroup> pair() const {
    std::shared_ptr<const ProcessGroup> mine;
    for (int64_t first = 0; first + 1 < size; first += 2) {
      if (auto both = group.new_group({first, first + 1})) mine = both;
    }
    return mine;
  }

  /// The groups whose gradients go through shared memory.
  std::vector<std::shared_ptr<const ProcessGroup>> groups() const {
    std::vector<std::shared_ptr<const ProcessGroup>> all;
    if (auto mine = pair()) all.push_back(mine);
    if (size == 4) all.push_back(accelerator.shared_process_group());
    return all;
  }
};

// ---- Sums ---------------------------------------------------------------------------------------

/// Numbers with inexact sums, different on each rank.
torch::Tensor some_numbers(int64_t size, torch::ScalarType dtype, int64_t rank, int64_t step) {
  const auto steps = torch::arange(size, torch::kDouble) + static_cast<double>(step);
  return (torch::sin(steps * (rank + 1.7)) * std::pow(3.0, rank)).to(dtype);
}

torch::Tensor average_of_gloo(const ProcessGroup& group, const torch::Tensor& mine) {
  auto sum = mine / group.size();
  group.all_reduce(sum);
  return sum;
}

/// Returns the averages that the hook computes for the buckets of one backward pass.
std::vector<torch::Tensor> averages(SharedMemoryHook& hook, std::vector<torch::Tensor> buckets) {
  std::vector<c10::intrusive_ptr<c10::ivalue::Future>> futures;
  for (std::size_t i = 0; i < buckets.size(); ++i) {
    c10d::GradBucket bucket(i, buckets.size(), buckets[i].clone(), {}, {}, {}, {}, std::nullopt);
    futures.push_back(hook.runHook(bucket));
  }
  std::vector<torch::Tensor> results;
  for (const auto& future : futures) results.push_back(hook.parseHookResult(future->value()));
  return results;
}

void expect_equal_bits(const std::vector<torch::Tensor>& a, const std::vector<torch::Tensor>& b) {
  ASSERT_EQ(a.size(), b.size());
  for (std::size_t i = 0; i < a.size(); ++i) {
    EXPECT_TRUE(torch::equal(a[i].view(torch::kByte), b[i].view(torch::kByte)))
        << "bucket " << i << " of " << a[i].numel() << " numbers of " << a[i].scalar_type();
  }
}

TEST_F(SharedMemoryTest, AveragesAreBitIdenticalToGloo) {
  const auto expect_as_gloo = [](const ProcessGroup& ranks, const std::vector<torch::Tensor>& mine,
                                 const std::vector<torch::Tensor>& made_for) {
    const auto hook = SharedMemoryHook::make(ranks, made_for);
    ASSERT_TRUE(hook);
    std::vector<torch::Tensor> expected;
    for (const auto& bucket : mine) expected.push_back(average_of_gloo(ranks, bucket));
    expect_equal_bits(averages(*hook, mine), expected);
  };
  for (const auto& ranks : groups()) {
    for (const auto dtype : {torch::kFloat, torch::kDouble, torch::kHalf, torch::kBFloat16}) {
      std::vector<torch::Tensor> buckets;
      // The largest sizes need several pieces in shared memory and several segments in Gloo.
      for (const int64_t count : {0, 1, 2, 3, 5, 7, 8, 9, 63, 64, 65, 1001, 262'143, 1'300'001}) {
        buckets.push_back(some_numbers(count, dtype, ranks->rank(), count));
      }
      expect_as_gloo(*ranks, buckets, buckets);
    }
    const std::vector<torch::Tensor> not_normal{torch::tensor(
        {1e-45, 3e-45, 1.2e-38, 3.3e38, std::numeric_limits<double>::infinity()}, torch::kFloat)};
    expect_as_gloo(*ranks, not_normal, not_normal);
    // With three places, these are reduced in pieces.
    expect_as_gloo(*ranks,
                   {some_numbers(40'001, torch::kFloat, ranks->rank(), 0),
                    some_numbers(3'000, torch::kHalf, ranks->rank(), 1)},
                   {torch::zeros({1000})});
  }
  if (const auto both = pair()) {
    const std::vector large{some_numbers(20'000'003, torch::kFloat, both->rank(), 0)};  // 76 MiB
    expect_as_gloo(*both, large, large);
  }
}

TEST_F(SharedMemoryTest, ManyStepsNeverOverwriteDataInUse) {
  for (const auto& ranks : groups()) {
    const auto hook = SharedMemoryHook::make(*ranks, {torch::zeros({5000})});
    ASSERT_TRUE(hook);
    int64_t num_wrong = 0;
    for (int64_t step = 0; step < 500; ++step) {
      std::vector<torch::Tensor> buckets;
      for (int64_t i = 0; i < 1 + step % 4; ++i) {
        buckets.push_back(torch::full({1250 - i}, static_cast<double>(step * ranks->rank() + i)));
      }
      const auto results = averages(*hook, buckets);
      for (std::size_t i = 0; i < results.size(); ++i) {
        const double expected =
            static_cast<double>(step * (ranks->size() - 1)) / 2.0 + static_cast<double>(i);
        if (!results[i].eq(expected).all().item<bool>()) ++num_wrong;
      }
    }
    EXPECT_EQ(num_wrong, 0);
  }
}

// ---- Training -----------------------------------------------------------------------------------

std::vector<torch::Tensor> trained_weights(const DistributedOptions& options, int64_t accumulation,
                                           bool uses_memory) {
  const EnvironmentVariable choice("LINKBOY_SHARED_MEMORY", uses_memory ? "1" : "0");
  RankToy toy(together(options));
  int64_t num_expected = 0;  // for the stop agreement and the gradients
  if (uses_memory) num_expected = num_ranks() == 2 || num_ranks() == 4 ? 2 : 1;
  auto run = run_of({.updates_per_epoch = 8, .num_epochs = 3});
  run.gradient_accumulation_steps = accumulation;
  toy.trainer.train(run);
  EXPECT_EQ(num_files(), num_expected);
  EXPECT_TRUE(same_on_all_ranks(toy));
  return copies_of(toy.parameters());
}

TEST_F(SharedMemoryTest, TrainsToTheSameWeightsAsGloo) {
  const std::vector<std::pair<DistributedOptions, int64_t>> cases{
      {{}, 1},
      {{}, 4},
      {{.bucket_cap_mb = 1e-5}, 1},
      {{.find_unused_parameters = true}, 1},
      {{.static_graph = true}, 1},
      {{.gradient_as_bucket_view = false}, 1}};
  for (const auto& [options, accumulation] : cases) {
    expect_equal_bits(trained_weights(options, accumulation, true),
                      trained_weights(options, accumulation, false));
  }
}

// ---- Cases that use Gloo ------------------------------------------------------------------------

TEST_F(SharedMemoryTest, OtherTensorsUseGloo) {
  const auto both = pair();
  if (!both) return;
  EXPECT_FALSE(SharedMemoryHook::make(*both, {torch::zeros({2}), torch::zeros({2}, torch::kInt)}));
  EXPECT_FALSE(SharedMemoryHook::make(*both, {torch::zeros({0})}));
  both->barrier();  // another rank can still wait on the connections of this group
}

TEST_F(SharedMemoryTest, ThreeRanksUseGloo) {
  if (size == 2) GTEST_SKIP() << "needs three ranks";
  const auto three = group.new_group({0, 1, 2});
  if (!three) return;
  EXPECT_FALSE(SharedMemoryHook::make(*three, {torch::zeros({2})}));
  three->barrier();
}

TEST_F(SharedMemoryTest, OneRankCanDisableItForAll) {
  for (int64_t other = 0; other < size; ++other) {
    const EnvironmentVariable choice("LINKBOY_SHARED_MEMORY", rank == other ? "0" : "1");
    EXPECT_FALSE(SharedMemorySegment::make(group, 100));
  }
  EXPECT_TRUE(SharedMemorySegment::make(group, 100));
}

TEST_F(SharedMemoryTest, ComparedCallsUseGloo) {
  auto implementation = std::make_shared<ProcessGroup::Implementation>(*group.implementation());
  implementation->checks_calls = true;
  EXPECT_FALSE(SharedMemorySegment::make(ProcessGroup(implementation), 100));
}

TEST_F(SharedMemoryTest, TooLittleMemoryFallsBackToGloo) {
  {
    const auto limit = limit_if(rank == 0, RLIMIT_FSIZE, 1 << 16);
    EXPECT_FALSE(SharedMemorySegment::make(group, 1 << 20));
  }
  EXPECT_TRUE(SharedMemorySegment::make(group, 1 << 20));
}

TEST_F(SharedMemoryTest, ARankThatCannotOpenItDisablesItForAll) {
  const int64_t num_before = num_files();
  {
    const auto limit = limit_if(rank == size - 1, RLIMIT_NOFILE, 0);
    EXPECT_FALSE(SharedMemorySegment::make(group, 100));
  }
  EXPECT_EQ(num_files(), num_before);
}

// ---- Lost ranks ---------------------------------------------------------------------------------

TEST_F(SharedMemoryTest, ALostRankEndsTheWaitImmediately) {
  using Counter = SharedMemorySegment::Counter;
  auto segment = SharedMemorySegment::make(group, 100);
  ASSERT_TRUE(segment);
  segment->advance(Counter::written);
  segment->wait_for_others(Counter::written, 1);
  if (rank != 1) {
    EXPECT_THROW(segment->wait_for_others(Counter::written, 2), c10::DistBackendError);
  }
  segment.reset();
  group.barrier();
}

TEST_F(SharedMemoryTest, DataWrittenByALostRankIsRead) {
  using Counter = SharedMemorySegment::Counter;
  auto segment = SharedMemorySegment::make(group, sizeof(int64_t));
  ASSERT_TRUE(segment);
  reinterpret_cast<int64_t&>(*segment->data(rank)) = 10 + rank;
  segment->advance(Counter::written);
  if (rank == 1) segment.reset();
  group.barrier();
  if (rank == 1) return;
  segment->wait_for_others(Counter::written, 1);
  EXPECT_EQ(reinterpret_cast<int64_t&>(*segment->data(1)), 11);
}

TEST_F(SharedMemoryTest, WaitsForALateRankUntilTheTimeout) {
  using Counter = SharedMemorySegment::Counter;
  auto implementation = std::make_shared<ProcessGroup::Implementation>(*group.implementation());
  implementation->timeout = std::chrono::milliseconds(300);
  const auto segment = SharedMemorySegment::make(ProcessGroup(implementation), 100);
  ASSERT_TRUE(segment);
  EXPECT_THROW(segment->wait_for_others(Counter::written, 1), c10::DistBackendError);
  group.barrier();
}

}  // namespace
}  // namespace linkboy::testing::shared_memory_test
