// Ranks on one host average gradients through shared memory. The result is bit-identical to that of
// Gloo.

#include "distributed/shared_memory_file.hpp"

#include <sys/resource.h>

#include <cmath>
#include <filesystem>
#include <optional>

#include "distributed/process_group_implementation.hpp"
#include "distributed/ranks.hpp"
#include "distributed/shared_memory_hook.hpp"
#include "distributed/shared_memory_segment.hpp"
#include "support/environment_variable.hpp"

namespace linkboy::testing::shared_memory_test {
namespace {

/// Sets a resource limit of this process, and restores the previous one at the end of the scope.
class Limit {
 public:
  Limit(__rlimit_resource resource, rlim_t value) : resource_(resource) {
    getrlimit(resource_, &before_);
    const rlimit changed{value, before_.rlim_max};
    setrlimit(resource_, &changed);
  }
  ~Limit() { setrlimit(resource_, &before_); }
  Limit(const Limit&) = delete;
  Limit& operator=(const Limit&) = delete;

 private:
  __rlimit_resource resource_;
  rlimit before_{};
};

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

class SharedMemoryTest : public ::testing::Test {
 protected:
  /// The pair of ranks that contains this rank; null for a last rank without a partner. Collective.
  std::shared_ptr<const ProcessGroup> pair() const {
    std::shared_ptr<const ProcessGroup> mine;
    for (int64_t first = 0; first + 1 < world.size(); first += 2) {
      if (auto group = world.new_group({first, first + 1})) mine = group;
    }
    return mine;
  }

  /// The groups whose gradients go through shared memory.
  std::vector<std::shared_ptr<const ProcessGroup>> groups() const {
    std::vector<std::shared_ptr<const ProcessGroup>> all;
    if (auto mine = pair()) all.push_back(mine);
    if (world.size() == 4) all.push_back(accelerator.shared_process_group());
    return all;
  }

  Accelerator accelerator{together()};
  const ProcessGroup& world = accelerator.process_group();
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

const auto kDtypes = {torch::kFloat, torch::kDouble, torch::kHalf, torch::kBFloat16};

TEST_F(SharedMemoryTest, AveragesAreBitIdenticalToGloo) {
  for (const auto& group : groups()) {
    for (const auto dtype : kDtypes) {
      std::vector<torch::Tensor> buckets;
      std::vector<torch::Tensor> expected;
      // The largest sizes need several pieces in shared memory and several segments in Gloo.
      for (const int64_t size : {0, 1, 2, 3, 5, 7, 8, 9, 63, 64, 65, 1001, 262'143, 1'300'001}) {
        buckets.push_back(some_numbers(size, dtype, group->rank(), size));
        expected.push_back(average_of_gloo(*group, buckets.back()));
      }
      const auto hook = SharedMemoryHook::make(*group, buckets);
      ASSERT_TRUE(hook);
      expect_equal_bits(averages(*hook, buckets), expected);
    }
  }
}

TEST_F(SharedMemoryTest, NonNormalNumbersEqualGloo) {
  for (const auto& group : groups()) {
    const double infinity = std::numeric_limits<double>::infinity();
    const auto mine = torch::tensor({1e-45, 3e-45, 1.2e-38, 3.3e38, infinity}, torch::kFloat);
    const auto hook = SharedMemoryHook::make(*group, {mine});
    ASSERT_TRUE(hook);
    expect_equal_bits(averages(*hook, {mine}), {average_of_gloo(*group, mine)});
  }
}

TEST_F(SharedMemoryTest, LargeBucketsAreReducedInPieces) {
  for (const auto& group : groups()) {
    const auto hook = SharedMemoryHook::make(*group, {torch::zeros({1000})});  // three places
    ASSERT_TRUE(hook);
    const std::vector<torch::Tensor> buckets{some_numbers(40'001, torch::kFloat, group->rank(), 0),
                                             some_numbers(3'000, torch::kHalf, group->rank(), 1)};
    std::vector<torch::Tensor> expected;
    for (const auto& bucket : buckets) expected.push_back(average_of_gloo(*group, bucket));
    expect_equal_bits(averages(*hook, buckets), expected);
  }
}

TEST_F(SharedMemoryTest, ManyStepsNeverOverwriteDataInUse) {
  for (const auto& group : groups()) {
    const auto hook = SharedMemoryHook::make(*group, {torch::zeros({5000})});
    ASSERT_TRUE(hook);
    int64_t num_wrong = 0;
    for (int64_t step = 0; step < 500; ++step) {
      std::vector<torch::Tensor> buckets;
      std::vector<double> expected;
      for (int64_t i = 0; i < 1 + step % 4; ++i) {
        buckets.push_back(torch::full({1250 - i}, static_cast<double>(step * group->rank() + i)));
        expected.push_back(static_cast<double>(step * (group->size() - 1)) / 2.0 +
                           static_cast<double>(i));
      }
      const auto results = averages(*hook, buckets);
      for (std::size_t i = 0; i < results.size(); ++i) {
        if (!results[i].eq(expected[i]).all().item<bool>()) ++num_wrong;
      }
    }
    EXPECT_EQ(num_wrong, 0);
  }
}

TEST_F(SharedMemoryTest, LargeBucketsAreAveraged) {
  const auto group = pair();
  if (!group) return;
  const auto mine = some_numbers(20'000'003, torch::kFloat, group->rank(), 0);  // 76 MiB
  const auto hook = SharedMemoryHook::make(*group, {mine});
  ASSERT_TRUE(hook);
  expect_equal_bits(averages(*hook, {mine}), {average_of_gloo(*group, mine)});
}

// ---- Training -----------------------------------------------------------------------------------

std::vector<torch::Tensor> trained_weights(const DistributedOptions& options, int64_t accumulation,
                                           bool uses_memory) {
  const EnvironmentVariable choice("LINKBOY_SHARED_MEMORY", uses_memory ? "1" : "0");
  RankToy toy(together(options));
  const int64_t num_ranks = toy.trainer.accelerator().num_processes();
  int64_t num_expected = 0;  // for the stop agreement and the gradients
  if (uses_memory) num_expected = num_ranks == 2 || num_ranks == 4 ? 2 : 1;
  toy.trainer.train({.train_dataset = toy_data(4 * num_ranks * 8),
                     .num_epochs = 3,
                     .per_device_batch_size = 4,
                     .gradient_accumulation_steps = accumulation});
  EXPECT_EQ(num_files(), num_expected);
  EXPECT_TRUE(same_on_all_ranks(toy.trainer.accelerator(), toy.parameters()));
  std::vector<torch::Tensor> weights;
  for (const auto& parameter : toy.parameters()) weights.push_back(parameter.detach().clone());
  return weights;
}

void expect_same_training(const DistributedOptions& options, int64_t accumulation = 1) {
  expect_equal_bits(trained_weights(options, accumulation, true),
                    trained_weights(options, accumulation, false));
}

TEST_F(SharedMemoryTest, TrainsToTheSameWeightsAsGloo) {
  expect_same_training({});
  expect_same_training({}, 4);
  expect_same_training({.bucket_cap_mb = 1e-5});
  expect_same_training({.find_unused_parameters = true});
  expect_same_training({.static_graph = true});
  expect_same_training({.gradient_as_bucket_view = false});
}

// ---- Cases that use Gloo ------------------------------------------------------------------------

TEST_F(SharedMemoryTest, OtherTensorsUseGloo) {
  const auto group = pair();
  if (!group) return;
  EXPECT_FALSE(SharedMemoryHook::make(*group, {torch::zeros({2}), torch::zeros({2}, torch::kInt)}));
  EXPECT_FALSE(SharedMemoryHook::make(*group, {torch::zeros({0})}));
  group->barrier();  // another rank can still wait on the connections of this group
}

TEST_F(SharedMemoryTest, ThreeRanksUseGloo) {
  if (world.size() == 2) GTEST_SKIP() << "needs three ranks";
  const auto group = world.new_group({0, 1, 2});
  if (!group) return;
  EXPECT_FALSE(SharedMemoryHook::make(*group, {torch::zeros({2})}));
  group->barrier();
}

TEST_F(SharedMemoryTest, OneRankCanDisableItForAll) {
  for (int64_t rank = 0; rank < world.size(); ++rank) {
    std::optional<EnvironmentVariable> choice;
    if (world.rank() == rank) choice.emplace("LINKBOY_SHARED_MEMORY", "0");
    EXPECT_FALSE(SharedMemorySegment::make(world, 100));
  }
  EXPECT_TRUE(SharedMemorySegment::make(world, 100));
}

TEST_F(SharedMemoryTest, ComparedCallsUseGloo) {
  auto implementation = std::make_shared<ProcessGroup::Implementation>(*world.implementation());
  implementation->checks_calls = true;
  EXPECT_FALSE(SharedMemorySegment::make(ProcessGroup(implementation), 100));
}

TEST_F(SharedMemoryTest, TooLittleMemoryFallsBackToGloo) {
  {
    std::optional<Limit> limit;
    if (world.rank() == 0) limit.emplace(RLIMIT_FSIZE, 1 << 16);
    EXPECT_FALSE(SharedMemorySegment::make(world, 1 << 20));
  }
  EXPECT_TRUE(SharedMemorySegment::make(world, 1 << 20));
}

TEST_F(SharedMemoryTest, ARankThatCannotOpenItDisablesItForAll) {
  const int64_t num_before = num_files();
  {
    std::optional<Limit> limit;
    if (world.rank() == world.size() - 1) limit.emplace(RLIMIT_NOFILE, 0);
    EXPECT_FALSE(SharedMemorySegment::make(world, 100));
  }
  EXPECT_EQ(num_files(), num_before);
}

TEST_F(SharedMemoryTest, OpensOnlyMemoryOfThisLibrary) {
  const auto file = SharedMemoryFile::create(4096);
  ASSERT_TRUE(file);
  EXPECT_TRUE(SharedMemoryFile::open(file->path(), 4096));
  EXPECT_FALSE(SharedMemoryFile::open(file->path(), 8192)) << "the size differs";
  EXPECT_FALSE(SharedMemoryFile::open("/proc/self/exe", 4096));
  EXPECT_FALSE(SharedMemoryFile::open("/proc/self/fd/1000000", 4096));
}

// ---- Lost ranks ---------------------------------------------------------------------------------

TEST_F(SharedMemoryTest, ALostRankEndsTheWaitImmediately) {
  using Counter = SharedMemorySegment::Counter;
  auto segment = SharedMemorySegment::make(world, 100);
  ASSERT_TRUE(segment);
  segment->advance(Counter::written);
  segment->wait_for_others(Counter::written, 1);
  if (world.rank() != 1) {
    EXPECT_THROW(segment->wait_for_others(Counter::written, 2), c10::DistBackendError);
  }
  segment.reset();
  world.barrier();
}

TEST_F(SharedMemoryTest, DataWrittenByALostRankIsRead) {
  using Counter = SharedMemorySegment::Counter;
  auto segment = SharedMemorySegment::make(world, sizeof(int64_t));
  ASSERT_TRUE(segment);
  reinterpret_cast<int64_t&>(*segment->data(world.rank())) = 10 + world.rank();
  segment->advance(Counter::written);
  if (world.rank() == 1) segment.reset();
  world.barrier();
  if (world.rank() == 1) return;
  segment->wait_for_others(Counter::written, 1);
  EXPECT_EQ(reinterpret_cast<int64_t&>(*segment->data(1)), 11);
}

TEST_F(SharedMemoryTest, WaitsForALateRankUntilTheTimeout) {
  using Counter = SharedMemorySegment::Counter;
  auto implementation = std::make_shared<ProcessGroup::Implementation>(*world.implementation());
  implementation->timeout = std::chrono::milliseconds(300);
  const auto segment = SharedMemorySegment::make(ProcessGroup(implementation), 100);
  ASSERT_TRUE(segment);
  EXPECT_THROW(segment->wait_for_others(Counter::written, 1), c10::DistBackendError);
  world.barrier();
}

}  // namespace
}  // namespace linkboy::testing::shared_memory_test
