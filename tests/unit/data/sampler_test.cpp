#include "linkboy/data/sampler.hpp"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <set>

#include "support/expect_error.hpp"

namespace linkboy::testing::sampler_test {
namespace {

using Indices = std::vector<int64_t>;

Indices all_of(const RandomPermutation& permutation) {
  Indices image(permutation.size());
  for (int64_t i = 0; i < permutation.size(); ++i) image[i] = permutation[i];
  return image;
}

TEST(RandomPermutationTest, VisitsEveryIndexOnce) {
  for (int64_t size : {0, 1, 2, 3, 4, 5, 15, 16, 17, 63, 64, 65, 1000, 4097, 60'000}) {
    auto image = all_of(RandomPermutation(size, 7, 1));
    std::sort(image.begin(), image.end());
    for (int64_t i = 0; i < size; ++i) ASSERT_EQ(image[i], i) << "size " << size;
  }
}

TEST(RandomPermutationTest, ReachesHugeSizesInConstantTimeAndMemory) {
  const int64_t size = int64_t{1} << 40;
  const RandomPermutation permutation(size, 1, 1);
  std::set<int64_t> seen;
  for (int64_t i = 0; i < 10'000; ++i) {
    const int64_t index = permutation[size - 1 - i];
    EXPECT_GE(index, 0);
    EXPECT_LT(index, size);
    seen.insert(index);
  }
  EXPECT_EQ(seen.size(), 10'000U);
}

TEST(RandomPermutationTest, DependsOnlyOnSeedAndEpoch) {
  const Indices expected = all_of(RandomPermutation(100, 1, 1));
  EXPECT_EQ(all_of(RandomPermutation(100, 1, 1)), expected);
  EXPECT_NE(all_of(RandomPermutation(100, 2, 1)), expected);
  EXPECT_NE(all_of(RandomPermutation(100, 1, 2)), expected);
  // These values must never change: a run that is resumed within an epoch must see the same order.
  EXPECT_EQ(all_of(RandomPermutation(10, 42, 1)), (Indices{3, 9, 2, 4, 5, 8, 7, 0, 1, 6}));
}

double chi_square(const std::vector<double>& counts, double expected) {
  double sum = 0.0;
  for (double count : counts) sum += (count - expected) * (count - expected) / expected;
  return sum;
}

/// Returns by how many standard deviations a chi-square value exceeds its expectation.
double deviation(double chi_square, double degrees_of_freedom) {
  return (chi_square - degrees_of_freedom) / std::sqrt(2.0 * degrees_of_freedom);
}

bool is_odd(const std::vector<int64_t>& permutation) {
  std::vector<bool> seen(permutation.size());
  std::size_t num_cycles = 0;
  for (std::size_t i = 0; i < permutation.size(); ++i) {
    if (seen[i]) continue;
    ++num_cycles;
    for (std::size_t j = i; !seen[j]; j = static_cast<std::size_t>(permutation[j])) seen[j] = true;
  }
  return (permutation.size() - num_cycles) % 2 != 0;
}

class RandomPermutationStatisticsTest : public ::testing::TestWithParam<int64_t> {};

// The seeds are fixed, so this test never fails by chance. If the algorithm changes, the
// probability that one of the 45 values exceeds 4.5 by chance is about 1 in 1,000. Six rounds
// without the rotation lead to values above 10 for all sizes, and above 300 for some.
TEST_P(RandomPermutationStatisticsTest, PositionsNeighboursAndParityAreUniform) {
  const int64_t size = GetParam();
  const auto n = static_cast<std::size_t>(size);
  const int64_t num_permutations = std::min<int64_t>(100'000, 2'000'000 / size);
  constexpr int64_t kEpochs = 100;  // per seed
  std::vector<double> positions(n * n);
  std::vector<double> steps(n - 1);
  double num_odd = 0.0;
  for (int64_t k = 0; k < num_permutations; ++k) {
    const auto image = all_of(
        RandomPermutation(size, static_cast<uint64_t>(k / kEpochs) * 7'919 + 3, k % kEpochs + 1));
    for (std::size_t i = 0; i < n; ++i) ++positions[i * n + static_cast<std::size_t>(image[i])];
    for (std::size_t i = 0; i + 1 < n; ++i) {
      ++steps[static_cast<std::size_t>((image[i + 1] - image[i] + size) % size) - 1];
    }
    num_odd += is_odd(image) ? 1.0 : 0.0;
  }
  const auto num = static_cast<double>(num_permutations);
  const auto places = static_cast<double>(size);
  constexpr double kLimit = 4.5;
  // Each index is at exactly one position, so both rows and columns lose a degree of freedom.
  const double of_positions = chi_square(positions, num / places) * (places - 1) / places;
  EXPECT_LT(deviation(of_positions, (places - 1) * (places - 1)), kLimit);
  EXPECT_LT(deviation(chi_square(steps, num), places - 2), kLimit);
  EXPECT_LT(std::abs(num_odd - num / 2) / (std::sqrt(num) / 2), kLimit);
}

INSTANTIATE_TEST_SUITE_P(Sizes, RandomPermutationStatisticsTest,
                         ::testing::Values(5, 6, 7, 8, 10, 15, 16, 17, 33, 63, 64, 65, 100, 1000,
                                           1024));

TEST(RandomPermutationTest, RejectsANegativeSize) {
  EXPECT_ERROR(RandomPermutation(-1, 0, 0), "a permutation of -1 elements");
}

TEST(SamplerTest, AnyPositionOfAnEpochIsReachedDirectly) {
  const RandomSampler sampler(100, 9);
  Indices whole(100);
  sampler.sample(4, 0, 100, whole.data());
  Indices part(10);
  sampler.sample(4, 55, 10, part.data());
  EXPECT_EQ(part, Indices(whole.begin() + 55, whole.begin() + 65));
}

}  // namespace
}  // namespace linkboy::testing::sampler_test
