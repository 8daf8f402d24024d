// Permutation, samplers, datasets and loaders.

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <atomic>
#include <chrono>
#include <numeric>
#include <random>
#include <set>
#include <thread>

#include "linkboy/data/data_loader.hpp"
#include "support/expect_error.hpp"
#include "support/toy.hpp"

namespace linkboy::testing::data_test {
namespace {

std::vector<int64_t> all_of(const RandomPermutation& permutation) {
  std::vector<int64_t> image(permutation.size());
  for (int64_t i = 0; i < permutation.size(); ++i) image[i] = permutation[i];
  return image;
}

TEST(RandomPermutationTest, VisitsEveryIndexOnce) {
  for (int64_t size : {0, 1, 2, 3, 4, 5, 15, 16, 17, 63, 64, 65, 1000, 4097, 60'000}) {
    auto image = all_of(RandomPermutation(size, 7, 1));
    std::sort(image.begin(), image.end());
    std::vector<int64_t> expected(size);
    std::iota(expected.begin(), expected.end(), 0);
    EXPECT_EQ(image, expected) << "size " << size;
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

TEST(RandomPermutationTest, DependsOnSeedAndEpochAlone) {
  EXPECT_EQ(all_of(RandomPermutation(100, 1, 1)), all_of(RandomPermutation(100, 1, 1)));
  EXPECT_NE(all_of(RandomPermutation(100, 1, 1)), all_of(RandomPermutation(100, 2, 1)));
  EXPECT_NE(all_of(RandomPermutation(100, 1, 1)), all_of(RandomPermutation(100, 1, 2)));
  // Held from now on: a run that is resumed in mid-epoch must see the same order.
  EXPECT_EQ(all_of(RandomPermutation(10, 42, 1)),
            (std::vector<int64_t>{3, 9, 2, 4, 5, 8, 7, 0, 1, 6}));
}

double chi_square(const std::vector<double>& counts, double expected) {
  double sum = 0.0;
  for (double count : counts) sum += (count - expected) * (count - expected) / expected;
  return sum;
}

/// By how many standard deviations a value of chi-square is larger than chance would have it.
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

// Always the same numbers, so this never fails by chance. Of 45 values, chance alone would bring
// one beyond 4.5 about once in a thousand changes of the algorithm. Six rounds without the rotation
// are beyond 10 for all sizes, beyond 300 for some.
TEST_P(RandomPermutationStatisticsTest, PositionsNeighboursAndParityAreUniform) {
  const int64_t size = GetParam();
  const auto n = static_cast<std::size_t>(size);
  const int64_t num_permutations = std::min<int64_t>(100'000, 2'000'000 / size);
  constexpr int64_t kEpochs = 100;  // of each seed
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
  // Each index is at one position: that takes freedom from rows and columns alike.
  const double of_positions = chi_square(positions, num / places) * (places - 1) / places;
  EXPECT_LT(deviation(of_positions, (places - 1) * (places - 1)), kLimit);
  EXPECT_LT(deviation(chi_square(steps, num), places - 2), kLimit);
  EXPECT_LT(std::abs(num_odd - num / 2) / (std::sqrt(num) / 2), kLimit);
}

INSTANTIATE_TEST_SUITE_P(Sizes, RandomPermutationStatisticsTest,
                         ::testing::Values(5, 6, 7, 8, 10, 15, 16, 17, 33, 63, 64, 65, 100, 1000,
                                           1024));

TEST(RandomPermutationTest, NeighboursInOrderAreNoNeighboursInData) {
  const RandomPermutation permutation(60'000, 3, 1);
  double distance = 0.0;
  for (int64_t i = 0; i + 1 < 60'000; ++i) {
    distance += std::abs(static_cast<double>(permutation[i + 1] - permutation[i]));
  }
  EXPECT_NEAR(distance / 59'999, 20'000, 400);  // a third of the size, as for random pairs
}

TEST(RandomPermutationTest, RejectsANegativeSize) {
  EXPECT_ERROR(RandomPermutation(-1, 0, 0), "a permutation of -1 elements");
}

TEST(SamplerTest, AnyPlaceOfAnEpochIsReachedDirectly) {
  const RandomSampler sampler(100, 9);
  std::vector<int64_t> whole(100);
  sampler.sample(4, 0, 100, whole.data());
  std::vector<int64_t> part(10);
  sampler.sample(4, 55, 10, part.data());
  EXPECT_TRUE(std::equal(part.begin(), part.end(), whole.begin() + 55));
}

TEST(TensorDatasetTest, GathersRowsInTheOrderAsked) {
  TensorDataset data(torch::arange(12).reshape({6, 2}), torch::arange(6) * 10);
  const Batch batch = data.get_batch(std::vector<int64_t>{4, 0, 4});
  EXPECT_TRUE(torch::equal(batch.input(), torch::tensor({{8, 9}, {0, 1}, {8, 9}}, torch::kLong)));
  EXPECT_TRUE(torch::equal(batch.target(), torch::tensor({40, 0, 40}, torch::kLong)));
}

TEST(TensorDatasetTest, GathersRowsOfAnyLayoutAndRefusesThoseThatAreNotThere) {
  const auto square = torch::arange(12, torch::kFloat).reshape({3, 4});
  const auto empty_rows = torch::zeros({4, 0});
  TensorDataset data(square.t(), empty_rows);
  const Batch batch = data.get_batch(std::vector<int64_t>{3, 0});
  EXPECT_TRUE(torch::equal(batch.input(), torch::tensor({{3, 7, 11}, {0, 4, 8}}, torch::kFloat)));
  EXPECT_EQ(batch.target().sizes(), (std::vector<int64_t>{2, 0}));
  TensorDataset plain(torch::zeros({3, 2}), torch::zeros({3}));
  EXPECT_ERROR(plain.get_batch(std::vector<int64_t>{3}), "sample 3 of a dataset of 3");
  EXPECT_ERROR(plain.get_batch(std::vector<int64_t>{-1}), "sample -1 of a dataset of 3");
}

TEST(TensorDatasetTest, BatchesAreCopies) {
  const auto x = torch::zeros({4, 2});
  TensorDataset data(x, torch::zeros({4}));
  auto batch = data.get_batch(std::vector<int64_t>{0, 1, 2, 3});
  batch["input"].fill_(1);
  EXPECT_EQ(x.sum().item<float>(), 0.0F);
}

TEST(TensorDatasetTest, RejectsTensorsThatDoNotFit) {
  EXPECT_ERROR(TensorDataset(NamedTensors{}), "needs at least one tensor");
  EXPECT_ERROR(TensorDataset(torch::zeros({3, 2}), torch::zeros({4})),
               "\"input\" has 3 samples, but \"target\" has 4");
  EXPECT_ERROR(TensorDataset(torch::zeros({}), torch::zeros({})), "is a scalar");
  EXPECT_ERROR(TensorDataset(torch::zeros({2}), torch::Tensor()), "\"target\" is undefined");
}

/// A LibTorch dataset of single examples.
class Squares : public torch::data::datasets::Dataset<Squares> {
 public:
  torch::data::Example<> get(std::size_t index) override {
    const auto value = static_cast<float>(index);
    return {torch::full({2}, value), torch::tensor(value * value)};
  }
  torch::optional<std::size_t> size() const override { return 7; }
};

TEST(DatasetTest, TakesALibTorchDataset) {
  const Dataset data(Squares{});
  EXPECT_EQ(data.size(), 7);
  const Batch batch = data.get_batch(std::vector<int64_t>{3, 5});
  EXPECT_TRUE(torch::equal(batch.input(), torch::tensor({{3.F, 3.F}, {5.F, 5.F}})));
  EXPECT_TRUE(torch::equal(batch.target(), torch::tensor({9.F, 25.F})));
}

TEST(DatasetTest, TakesAMappedLibTorchDataset) {
  const Dataset data(Squares{}
                         .map(torch::data::transforms::Normalize<>(1.0, 2.0))
                         .map(torch::data::transforms::Stack<>()));
  const Batch batch = data.get_batch(std::vector<int64_t>{3, 5});
  EXPECT_TRUE(torch::equal(batch.input().flatten(), torch::tensor({1.F, 1.F, 2.F, 2.F})));
}

TEST(DatasetTest, TakesLibTorchsTensorDataset) {
  const Dataset data(torch::data::datasets::TensorDataset(torch::arange(4)));
  const Batch batch = data.get_batch(std::vector<int64_t>{2, 1});
  EXPECT_TRUE(torch::equal(batch.input(), torch::tensor({2, 1}, torch::kLong)));
}

TEST(DatasetTest, EachWorkerHasItsOwnCopyOfALibTorchDataset) {
  // LibTorch's own loader copies as well: `get` need not be safe to call from two threads.
  class Counting : public torch::data::datasets::Dataset<Counting> {
   public:
    torch::data::Example<> get(std::size_t) override {
      return {torch::full({1}, ++calls_), torch::zeros({})};
    }
    torch::optional<std::size_t> size() const override { return 4; }

   private:
    int calls_ = 0;
  };
  const Dataset data(Counting{});
  const std::vector<int64_t> one{0};
  data.get_batch(one);
  const Dataset copy = data.for_worker();
  EXPECT_EQ(copy.get_batch(one).input().item<int64_t>(), 2);
  EXPECT_EQ(data.get_batch(one).input().item<int64_t>(), 2);
}

TEST(DatasetTest, EmptyHandleSaysSo) {
  const Dataset none;
  EXPECT_FALSE(none);
  EXPECT_ERROR(none.size(), "no dataset was given");
}

TEST(DatasetTest, DatasetWithoutASizeIsRefused) {
  class Endless : public torch::data::datasets::Dataset<Endless> {
   public:
    torch::data::Example<> get(std::size_t) override { return {torch::ones({1}), torch::ones({})}; }
    torch::optional<std::size_t> size() const override { return torch::nullopt; }
  };
  EXPECT_ERROR(Dataset(Endless{}).size(), "does not know its size");
}

// Counts its copies; a copy for each worker is what clone() is for.
class CountingSource : public DatasetSource {
 public:
  explicit CountingSource(std::shared_ptr<int> copies) : copies_(std::move(copies)) {}
  int64_t size() const override { return 4; }
  Batch get_batch(std::span<const int64_t> indices) override {
    return Batch(at::tensor(std::vector<int64_t>(indices.begin(), indices.end())));
  }
  std::shared_ptr<DatasetSource> clone() const override {
    ++*copies_;
    return std::make_shared<CountingSource>(copies_);
  }

 private:
  std::shared_ptr<int> copies_;
};

TEST(SubsetTest, GivesTheChosenSamplesInItsOwnOrder) {
  const auto x = torch::arange(10);
  const Dataset subset(
      std::make_shared<Subset>(TensorDataset(x, 10 * x), std::vector<int64_t>{7, 2, 7}));
  EXPECT_EQ(subset.size(), 3);
  const auto batch = subset.get_batch(std::vector<int64_t>{2, 1});
  EXPECT_TRUE(batch.input().equal(torch::tensor({7, 2})));
  EXPECT_TRUE(batch.target().equal(torch::tensor({70, 20})));
  const auto samples = subset.get_samples(std::vector<int64_t>{1});
  ASSERT_EQ(samples.size(), 1U);
  EXPECT_EQ(samples[0].input().item<int64_t>(), 2);
}

TEST(SubsetTest, EachWorkerHasItsOwnCopyOfTheDataset) {
  const auto copies = std::make_shared<int>(0);
  const Dataset subset(std::make_shared<Subset>(std::make_shared<CountingSource>(copies),
                                                std::vector<int64_t>{3, 1}));
  const auto copy = subset.for_worker();
  EXPECT_EQ(*copies, 1);
  EXPECT_TRUE(copy.get_batch(std::vector<int64_t>{0, 1}).input().equal(torch::tensor({3, 1})));
}

TEST(SubsetTest, RefusesAnIndexOfASamplerThatIsNotInIt) {
  const auto x = torch::arange(10, torch::kFloat);
  Subset subset(TensorDataset(x, x), {7, 2});
  const std::vector<int64_t> too_large{0, 2};
  EXPECT_ERROR(subset.get_batch(too_large), "sample 2 of a Subset of 2 is asked for");
  EXPECT_ERROR(subset.get_samples(std::vector<int64_t>{-1}), "sample -1 of a Subset of 2");
}

TEST(SubsetTest, RefusesSamplesThatAreNotThere) {
  const TensorDataset data(torch::zeros({3, 1}), torch::zeros(3));
  using Indices = std::vector<int64_t>;
  EXPECT_ERROR(Subset(data, Indices(1, 3)),
               "sample 3 of a dataset of 3 is asked for; it must be 0 to 2");
  EXPECT_ERROR(Subset(data, Indices(1, -1)), "sample -1");
  EXPECT_ERROR(Subset(Dataset(), Indices()), "no dataset was given");
}

TEST(StackSamplesTest, RejectsSamplesThatDiffer) {
  EXPECT_ERROR(stack_samples({}), "no samples to stack");
  EXPECT_ERROR(stack_samples({Batch(torch::ones({1})), Batch(torch::ones({1}), torch::ones({}))}),
               "have 1 and 2 tensors");
}

std::vector<int64_t> epoch_of(DataLoader& loader, int64_t epoch, int64_t first_batch = 0) {
  std::vector<int64_t> seen;
  auto batches = loader.iterate(epoch, first_batch);
  while (const auto batch = batches->next()) {
    const auto rows = batch->input().contiguous();
    seen.insert(seen.end(), rows.data_ptr<int64_t>(), rows.data_ptr<int64_t>() + rows.numel());
  }
  return seen;
}

Dataset numbers(int64_t size) {
  return TensorDataset(NamedTensors{{"input", torch::arange(size)}});
}

TEST(DataLoaderTest, GivesEverySampleOnceInOrder) {
  auto loader = make_data_loader(numbers(10), {.batch_size = 4});
  EXPECT_EQ(loader->size(), 3);
  EXPECT_EQ(epoch_of(*loader, 1), (std::vector<int64_t>{0, 1, 2, 3, 4, 5, 6, 7, 8, 9}));
}

TEST(DataLoaderTest, DropsALastBatchThatIsNotFull) {
  auto loader = make_data_loader(numbers(10), {.batch_size = 4, .drop_last = true});
  EXPECT_EQ(loader->size(), 2);
  EXPECT_EQ(epoch_of(*loader, 1).size(), 8U);
}

TEST(DataLoaderTest, ShufflesEachEpochAnewAndRepeatably) {
  auto loader = make_data_loader(numbers(50), {.batch_size = 8, .shuffle = true, .seed = 1});
  auto again = make_data_loader(numbers(50), {.batch_size = 8, .shuffle = true, .seed = 1});
  const auto first = epoch_of(*loader, 1);
  EXPECT_NE(first, epoch_of(*loader, 2));
  EXPECT_EQ(first, epoch_of(*again, 1));
  EXPECT_EQ(std::set<int64_t>(first.begin(), first.end()).size(), 50U);
}

TEST(DataLoaderTest, WorkersChangeNeitherOrderNorRandomNumbers) {
  auto epoch_with = [](int64_t workers) {
    auto loader = make_data_loader(
        numbers(101),
        {.batch_size = 4,
         .shuffle = true,
         .num_workers = workers,
         .seed = 3,
         .transform = [](Batch batch, const TransformContext& context) {
           // Whoever is later in line is faster.
           std::this_thread::sleep_for(std::chrono::microseconds(context.indices[0] % 5 * 300));
           for (std::size_t i = 0; i < context.indices.size(); ++i) {
             const auto noise = torch::randint(1000, {}, context.generator(i), torch::kLong);
             batch["input"][static_cast<int64_t>(i)].add_(noise * 1000);
           }
           return batch;
         }});
    return epoch_of(*loader, 2);
  };
  const auto in_loop = epoch_with(0);
  EXPECT_EQ(in_loop, epoch_with(1));
  EXPECT_EQ(in_loop, epoch_with(3));
}

TEST(DataLoaderTest, RandomNumbersOfASampleDoNotDependOnItsPlace) {
  auto noise_of = [](int64_t batch_size, bool shuffle) {
    std::map<int64_t, int64_t> noise;
    auto loader = make_data_loader(
        numbers(20),
        {.batch_size = batch_size,
         .shuffle = shuffle,
         .seed = 3,
         .transform = [&](Batch batch, const TransformContext& context) {
           for (std::size_t i = 0; i < context.indices.size(); ++i) {
             noise[context.indices[i]] =
                 torch::randint(1 << 30, {}, context.generator(i), torch::kLong).item<int64_t>();
           }
           return batch;
         }});
    epoch_of(*loader, 1);
    return noise;
  };
  EXPECT_EQ(noise_of(4, true), noise_of(7, false));
}

TEST(DataLoaderTest, EpochCanBeEnteredAtAnyBatch) {
  for (int64_t workers : {0, 2}) {
    auto loader = make_data_loader(
        numbers(30), {.batch_size = 4, .shuffle = true, .num_workers = workers, .seed = 1});
    const auto whole = epoch_of(*loader, 3);
    for (int64_t first = 0; first <= loader->size(); ++first) {
      const auto rest = epoch_of(*loader, 3, first);
      EXPECT_EQ(rest, std::vector<int64_t>(whole.begin() + std::min<int64_t>(first * 4, 30),
                                           whole.end()));
    }
    EXPECT_ERROR(loader->iterate(1, 9), "batch 9 was asked for");
  }
}

TEST(DataLoaderTest, RethrowsAWorkersExceptionInItsPlace) {
  auto loader =
      make_data_loader(numbers(40), {.batch_size = 4,
                                     .num_workers = 3,
                                     .transform = [](Batch batch, const TransformContext& context) {
                                       if (context.indices[0] == 12)
                                         throw std::runtime_error("sample 12");
                                       return batch;
                                     }});
  auto batches = loader->iterate(1);
  for (int i = 0; i < 3; ++i) EXPECT_TRUE(batches->next());
  EXPECT_THROW(batches->next(), std::runtime_error);
  EXPECT_FALSE(batches->next());
}

TEST(DataLoaderTest, WorkersKeepABoundedDistance) {
  std::atomic<int64_t> made = 0;
  auto loader =
      make_data_loader(numbers(400), {.batch_size = 1,
                                      .num_workers = 2,
                                      .prefetch_factor = 3,
                                      .transform = [&](Batch batch, const TransformContext&) {
                                        ++made;
                                        return batch;
                                      }});
  auto batches = loader->iterate(1);
  for (int64_t taken = 1; taken <= 50; ++taken) {
    batches->next();
    if (taken == 25) std::this_thread::sleep_for(std::chrono::milliseconds(50));
    EXPECT_LE(made.load(), taken + 2 * 3);
  }
}

TEST(DataLoaderTest, CanBeLeftInMidEpoch) {
  auto loader = make_data_loader(numbers(1000), {.batch_size = 1, .num_workers = 4});
  for (int i = 0; i < 20; ++i) {
    auto batches = loader->iterate(1);
    batches->next();
  }
}

/// Each sample is a number of an engine of the dataset's own; counts the copies of the dataset.
class Noise : public torch::data::datasets::Dataset<Noise> {
 public:
  explicit Noise(std::shared_ptr<std::atomic<int>> copies) : copies_(std::move(copies)) {}
  Noise(const Noise& other) : Dataset(other), copies_(other.copies_), engine_(other.engine_) {
    ++*copies_;
  }
  Noise(Noise&&) = default;

  torch::data::Example<> get(std::size_t) override {
    return {torch::tensor(static_cast<int64_t>(engine_() % 1'000'000)), torch::zeros({})};
  }
  torch::optional<std::size_t> size() const override { return 24; }

 private:
  std::shared_ptr<std::atomic<int>> copies_;
  std::mt19937 engine_;
};

TEST(DataLoaderTest, DatasetWithAnEngineOfItsOwnDrawsOtherNumbersInEachEpoch) {
  for (int64_t workers : {0, 2}) {
    SCOPED_TRACE(c10::str(workers, " workers"));
    std::vector<std::vector<int64_t>> runs;
    for (int run = 0; run < 3; ++run) {
      const auto loader =
          make_data_loader(Noise(std::make_shared<std::atomic<int>>(0)),
                           {.batch_size = 2, .num_workers = workers, .prefetch_factor = 1});
      const auto first = epoch_of(*loader, 1);
      const auto second = epoch_of(*loader, 2);
      EXPECT_NE(first, second);
      runs.push_back(first);
      runs.back().insert(runs.back().end(), second.begin(), second.end());
    }
    // Whichever worker is faster.
    EXPECT_EQ(runs[0], runs[1]);
    EXPECT_EQ(runs[0], runs[2]);
  }
}

TEST(DataLoaderTest, AnEpochThatIsLeftEarlyLeavesTheEnginesOfWorkersAtOnePlace) {
  const auto second_epoch = [](bool waits) {
    const auto loader = make_data_loader(Noise(std::make_shared<std::atomic<int>>(0)),
                                         {.batch_size = 1, .num_workers = 2, .prefetch_factor = 3});
    auto batches = loader->iterate(1);
    batches->next();
    if (waits) std::this_thread::sleep_for(std::chrono::milliseconds(100));
    batches.reset();
    return epoch_of(*loader, 2);
  };
  const auto expected = second_epoch(true);
  for (int run = 0; run < 5; ++run) EXPECT_EQ(second_epoch(false), expected);
}

TEST(DataLoaderTest, CopiesADatasetOncePerWorker) {
  const auto copies = std::make_shared<std::atomic<int>>(0);
  const Dataset data(Noise{copies});
  const Dataset part(std::make_shared<Subset>(data, std::vector<int64_t>{3, 1, 2, 5}));
  const auto loader = make_data_loader(data, {.batch_size = 1, .num_workers = 3});
  const auto loader_of_part = make_data_loader(part, {.batch_size = 1, .num_workers = 2});
  for (int64_t epoch = 1; epoch <= 4; ++epoch) {
    epoch_of(*loader, epoch);
    loader->iterate(epoch);  // left at its beginning
    epoch_of(*loader_of_part, epoch);
  }
  EXPECT_EQ(*copies, 5);
  // While one iterator has the copies, another one needs its own.
  auto first = loader->iterate(5);
  auto second = loader->iterate(5);
  EXPECT_EQ(*copies, 8);
}

TEST(DataLoaderTest, SharesADatasetWhoseGetBatchIsConst) {
  struct Constant {
    explicit Constant(std::shared_ptr<int> count) : copies(std::move(count)) {}
    Constant(const Constant& other) : copies(other.copies) { ++*copies; }
    Constant(Constant&&) = default;
    torch::data::Example<> get_batch(c10::ArrayRef<std::size_t> indices) const {
      return {torch::full({static_cast<int64_t>(indices.size())}, 7), torch::zeros({1})};
    }
    std::optional<std::size_t> size() const { return 6; }
    std::shared_ptr<int> copies;
  };
  const auto copies = std::make_shared<int>(0);
  const Dataset data(Constant{copies});
  const Dataset part(std::make_shared<Subset>(data, std::vector<int64_t>{3, 1}));
  const auto loader = make_data_loader(part, {.batch_size = 1, .num_workers = 2});
  EXPECT_EQ(epoch_of(*loader, 1), (std::vector<int64_t>{7, 7}));
  EXPECT_EQ(*copies, 0);
  EXPECT_TRUE(part.for_worker().is_same_as(part));
}

TEST(DataLoaderTest, CustomSamplerSetsTheOrderAndTheLength) {
  class Evens : public Sampler {
   public:
    int64_t size() const override { return 3; }
    void sample(int64_t, int64_t begin, int64_t count, int64_t* indices) const override {
      for (int64_t i = 0; i < count; ++i) indices[i] = 2 * (begin + i);
    }
  };
  auto loader =
      make_data_loader(numbers(10), {.batch_size = 2, .sampler = std::make_shared<Evens>()});
  EXPECT_EQ(epoch_of(*loader, 1), (std::vector<int64_t>{0, 2, 4}));
  EXPECT_ERROR(
      make_data_loader(numbers(10), {.shuffle = true, .sampler = std::make_shared<Evens>()}),
      "both shuffle and a sampler");
  const DataLoaderOptions defaults{.shuffle = true};
  EXPECT_FALSE(defaults.merged_with({.sampler = std::make_shared<Evens>()}).shuffle);
}

TEST(DataLoaderTest, StateBringsTheSameOrderToAnotherLoader) {
  const DataLoaderOptions options{.batch_size = 3, .shuffle = true, .seed = 1};
  DatasetLoader first(numbers(20), options);
  DatasetLoader second(numbers(20), options.merged_with({.seed = ~uint64_t{0}}));
  EXPECT_NE(epoch_of(first, 1), epoch_of(second, 1));
  first.load_state_dict(second.state_dict());
  EXPECT_EQ(epoch_of(first, 1), epoch_of(second, 1));
  EXPECT_ERROR(first.load_state_dict({}), "no \"seed\"");
}

TEST(DataLoaderTest, RejectsOptionsOutOfTheirRange) {
  EXPECT_ERROR(make_data_loader(numbers(4), {.batch_size = 0}), "batch_size is 0");
  EXPECT_ERROR(make_data_loader(numbers(4), {.num_workers = -1}), "num_workers is -1");
  EXPECT_ERROR(make_data_loader(numbers(4), {.prefetch_factor = 0}), "prefetch_factor is 0");
  EXPECT_ERROR(make_data_loader(numbers(0), {}), "the dataset is empty");
  EXPECT_ERROR(make_data_loader(numbers(3), {.batch_size = 4, .drop_last = true}),
               "drop_last leaves no batch");
}

TEST(StackSamplesTest, NamesTheTensorWhoseShapesDiffer) {
  const std::vector<Batch> samples{Batch(torch::ones({3})), Batch(torch::ones({5}))};
  EXPECT_ERROR(stack_samples(samples),
               "\"input\" has shape [3] in one sample of a batch and [5] in another");
}

/// Notes whether its rows were gathered in page-locked memory.
class PinnedSource : public DatasetSource {
 public:
  int64_t size() const override { return rows_.size(); }
  Batch get_batch(std::span<const int64_t> indices) override {
    Batch batch = rows_.get_batch(indices);
    is_pinned = batch.input().is_pinned();
    return batch;
  }
  std::atomic<bool> is_pinned = false;

 private:
  TensorDataset rows_{NamedTensors{{"input", torch::arange(8, torch::kFloat)}}};
};

TEST(DatasetLoaderTest, BatchesAreGatheredWhereTheyAreCopiedFrom_CUDA) {
  for (const int64_t num_workers : {0, 2}) {
    const auto source = std::make_shared<PinnedSource>();
    DataLoaderOptions options{.batch_size = 4, .num_workers = num_workers, .pin_memory = true};
    const auto first = [&] { return *DatasetLoader(Dataset(source), options).iterate(1)->next(); };
    EXPECT_TRUE(torch::equal(first().input(), torch::arange(4, torch::kFloat)));
    EXPECT_TRUE(source->is_pinned);
    options.transform = [&](Batch batch, const TransformContext&) {
      EXPECT_FALSE(batch.input().is_pinned()) << "what the transform returns is";
      batch.set("input", batch.input().view({2, 2}).t());
      return batch;
    };
    const Batch turned = first();
    EXPECT_TRUE(turned.input().is_pinned());
    EXPECT_TRUE(torch::equal(turned.input(), torch::arange(4, torch::kFloat).view({2, 2}).t()));
    options.pin_memory = false;
    EXPECT_FALSE(first().input().is_pinned());
    EXPECT_FALSE(source->is_pinned);
  }
}

TEST(DatasetLoaderTest, PinMemoryIsIgnoredWithoutADevice) {
  const DatasetLoader loader(numbers(4), {.pin_memory = true});
  EXPECT_EQ(*loader.options().pin_memory, torch::cuda::is_available());
}

}  // namespace
}  // namespace linkboy::testing::data_test
