#include "linkboy/data/data_loader.hpp"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <atomic>
#include <chrono>
#include <random>
#include <set>
#include <thread>

#include "support/expect_error.hpp"
#include "unit/data/loaded_batches.hpp"

namespace linkboy::testing::data_loader_test {
namespace {

TEST(DataLoaderTest, ReturnsEverySampleOnceInOrderAndDropLastSkipsAnIncompleteBatch) {
  for (const bool drop_last : {false, true}) {
    const auto loader = make_data_loader(numbers(10), {.batch_size = 4, .drop_last = drop_last});
    Batches expected{{0, 1, 2, 3}, {4, 5, 6, 7}, {8, 9}};
    if (drop_last) expected.pop_back();
    EXPECT_EQ(loader->size(), std::ssize(expected));
    EXPECT_EQ(batches_of(*loader, 1), expected);
  }
}

TEST(DataLoaderTest, ShufflesEachEpochDifferentlyAndRepeatably) {
  const DataLoaderOptions options{.batch_size = 8, .shuffle = true, .seed = 1};
  const auto loader = make_data_loader(numbers(50), options);
  const Samples first = samples_of(*loader, 1);
  EXPECT_NE(first, samples_of(*loader, 2));
  EXPECT_EQ(first, samples_of(*make_data_loader(numbers(50), options), 1));
  EXPECT_EQ(std::set<int64_t>(first.begin(), first.end()).size(), 50U);
}

TEST(DataLoaderTest, WorkersChangeNeitherOrderNorRandomNumbers) {
  DataLoaderOptions options{.batch_size = 4, .shuffle = true, .seed = 3};
  options.transform = [](Batch batch, const TransformContext& context) {
    // The time varies, so the workers do not finish in the order of the batches.
    std::this_thread::sleep_for(std::chrono::microseconds(context.indices[0] % 5 * 300));
    for (std::size_t i = 0; i < context.indices.size(); ++i) {
      const auto noise = torch::randint(1000, {}, context.generator(i), torch::kLong);
      batch["input"][static_cast<int64_t>(i)].add_(noise * 1000);
    }
    return batch;
  };
  const auto epoch_with = [&](int64_t workers) {
    options.num_workers = workers;
    return samples_of(*make_data_loader(numbers(101), options), 2);
  };
  const Samples in_loop = epoch_with(0);
  EXPECT_EQ(in_loop, epoch_with(1));
  EXPECT_EQ(in_loop, epoch_with(3));
}

TEST(DataLoaderTest, RandomNumbersOfASampleDoNotDependOnItsPosition) {
  const auto noise_of = [](int64_t batch_size, bool shuffle) {
    std::map<int64_t, int64_t> noise;
    DataLoaderOptions options{.batch_size = batch_size, .shuffle = shuffle, .seed = 3};
    options.transform = [&](Batch batch, const TransformContext& context) {
      for (std::size_t i = 0; i < context.indices.size(); ++i) {
        noise[context.indices[i]] =
            torch::randint(1 << 30, {}, context.generator(i), torch::kLong).item<int64_t>();
      }
      return batch;
    };
    samples_of(*make_data_loader(numbers(20), options), 1);
    return noise;
  };
  EXPECT_EQ(noise_of(4, true), noise_of(7, false));
}

TEST(DataLoaderTest, AnEpochCanStartAtAnyBatch) {
  for (int64_t workers : {0, 2}) {
    const auto loader = make_data_loader(
        numbers(30), {.batch_size = 4, .shuffle = true, .num_workers = workers, .seed = 1});
    const Batches whole = batches_of(*loader, 3);
    for (int64_t first = 0; first <= loader->size(); ++first) {
      EXPECT_EQ(batches_of(*loader, 3, first), Batches(whole.begin() + first, whole.end()));
    }
    EXPECT_ERROR(loader->iterate(1, 9), "batch 9 was requested");
  }
}

TEST(DataLoaderTest, RethrowsAnExceptionOfAWorkerAtItsBatch) {
  DataLoaderOptions options{.batch_size = 4, .num_workers = 3};
  options.transform = [](Batch batch, const TransformContext& context) {
    if (context.indices[0] == 12) throw std::runtime_error("sample 12");
    return batch;
  };
  const auto loader = make_data_loader(numbers(40), options);
  const auto batches = loader->iterate(1);
  for (int i = 0; i < 3; ++i) EXPECT_TRUE(batches->next());
  EXPECT_THROW(batches->next(), std::runtime_error);
  EXPECT_FALSE(batches->next());
}

TEST(DataLoaderTest, WorkersStayWithinABoundedDistance) {
  std::atomic<int64_t> made = 0;
  DataLoaderOptions options{.batch_size = 1, .num_workers = 2, .prefetch_factor = 3};
  options.transform = [&](Batch batch, const TransformContext&) {
    ++made;
    return batch;
  };
  const auto loader = make_data_loader(numbers(400), options);
  const auto batches = loader->iterate(1);
  for (int64_t taken = 1; taken <= 50; ++taken) {
    batches->next();
    if (taken == 25) std::this_thread::sleep_for(std::chrono::milliseconds(50));
    EXPECT_LE(made.load(), taken + 2 * 3);
  }
}

TEST(DataLoaderTest, CanBeAbandonedInMidEpoch) {
  const auto loader = make_data_loader(numbers(1000), {.batch_size = 1, .num_workers = 4});
  for (int i = 0; i < 20; ++i) loader->iterate(1)->next();
}

/// Draws each sample from an engine that is a member of the dataset. Counts the copies of the
/// dataset.
class Noise : public torch::data::datasets::Dataset<Noise> {
 public:
  explicit Noise(std::shared_ptr<std::atomic<int>> copies = std::make_shared<std::atomic<int>>(0))
      : copies_(std::move(copies)) {}
  Noise(const Noise& other)
      : Dataset(other), delay(other.delay), copies_(other.copies_), engine_(other.engine_) {
    ++*copies_;
  }
  Noise(Noise&&) = default;

  torch::data::Example<> get(std::size_t) override {
    std::this_thread::sleep_for(delay);
    return {torch::tensor(static_cast<int64_t>(engine_() % 1'000'000)), torch::zeros({})};
  }
  torch::optional<std::size_t> size() const override { return 24; }

  std::chrono::milliseconds delay{0};

 private:
  std::shared_ptr<std::atomic<int>> copies_;
  std::mt19937 engine_;
};

TEST(DataLoaderTest, ADatasetWithItsOwnEngineDrawsOtherNumbersInEachEpoch) {
  for (int64_t workers : {0, 2}) {
    SCOPED_TRACE(c10::str(workers, " workers"));
    const auto two_epochs = [workers] {
      const auto loader = make_data_loader(
          Noise(), {.batch_size = 2, .num_workers = workers, .prefetch_factor = 1});
      const Batches epochs{samples_of(*loader, 1), samples_of(*loader, 2)};
      EXPECT_NE(epochs[0], epochs[1]);
      return epochs;
    };
    // The result does not depend on which worker is faster.
    const Batches expected = two_epochs();
    for (int run = 0; run < 2; ++run) EXPECT_EQ(two_epochs(), expected);
  }
}

TEST(DataLoaderTest, AnAbandonedEpochLeavesAllWorkerEnginesAtTheSamePosition) {
  // After the first batch, slow workers have made fewer batches than fast ones.
  const auto second_epoch = [](bool is_slow) {
    Noise noise;
    if (is_slow) noise.delay = std::chrono::milliseconds(10);
    const auto loader =
        make_data_loader(noise, {.batch_size = 1, .num_workers = 2, .prefetch_factor = 3});
    auto batches = loader->iterate(1);
    batches->next();
    if (!is_slow) std::this_thread::sleep_for(std::chrono::milliseconds(100));
    batches.reset();
    return samples_of(*loader, 2);
  };
  EXPECT_EQ(second_epoch(true), second_epoch(false));
}

TEST(DataLoaderTest, CopiesADatasetOncePerWorker) {
  const auto copies = std::make_shared<std::atomic<int>>(0);
  const Dataset data(Noise{copies});
  const Dataset part(std::make_shared<Subset>(data, Samples{3, 1, 2, 5}));
  const auto loader = make_data_loader(data, {.batch_size = 1, .num_workers = 3});
  const auto loader_of_part = make_data_loader(part, {.batch_size = 1, .num_workers = 2});
  for (int64_t epoch = 1; epoch <= 4; ++epoch) {
    samples_of(*loader, epoch);
    (void)loader->iterate(epoch);  // abandoned before the first batch
    samples_of(*loader_of_part, epoch);
  }
  EXPECT_EQ(*copies, 5);
  // While the first iterator uses the copies, the second one needs three new copies.
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
  const Dataset part(std::make_shared<Subset>(data, Samples{3, 1}));
  const auto loader = make_data_loader(part, {.batch_size = 1, .num_workers = 2});
  EXPECT_EQ(samples_of(*loader, 1), (Samples{7, 7}));
  EXPECT_EQ(*copies, 0);
  EXPECT_TRUE(part.for_worker().is_same_as(part));
}

TEST(DataLoaderTest, ACustomSamplerSetsTheOrderAndTheLength) {
  class Evens : public Sampler {
   public:
    int64_t size() const override { return 3; }
    void sample(int64_t, int64_t begin, int64_t count, int64_t* indices) const override {
      for (int64_t i = 0; i < count; ++i) indices[i] = 2 * (begin + i);
    }
  };
  const auto evens = std::make_shared<Evens>();
  EXPECT_EQ(samples_of(*make_data_loader(numbers(10), {.batch_size = 2, .sampler = evens}), 1),
            (Samples{0, 2, 4}));
  EXPECT_ERROR(make_data_loader(numbers(10), {.shuffle = true, .sampler = evens}),
               "both shuffle and a sampler");
  const DataLoaderOptions defaults{.shuffle = true};
  EXPECT_FALSE(defaults.merged_with({.sampler = evens}).shuffle);
}

TEST(DataLoaderTest, AStateGivesTheSameOrderToAnotherLoader) {
  const DataLoaderOptions options{.batch_size = 3, .shuffle = true, .seed = 1};
  DatasetLoader first(numbers(20), options);
  DatasetLoader second(numbers(20), options.merged_with({.seed = ~uint64_t{0}}));
  EXPECT_NE(samples_of(first, 1), samples_of(second, 1));
  first.load_state_dict(second.state_dict());
  EXPECT_EQ(samples_of(first, 1), samples_of(second, 1));
  EXPECT_ERROR(first.load_state_dict({}), "no \"seed\"");
}

TEST(DataLoaderTest, RejectsOptionsOutOfRange) {
  EXPECT_ERROR(make_data_loader(numbers(4), {.batch_size = 0}), "batch_size is 0");
  EXPECT_ERROR(make_data_loader(numbers(4), {.num_workers = -1}), "num_workers is -1");
  EXPECT_ERROR(make_data_loader(numbers(4), {.prefetch_factor = 0}), "prefetch_factor is 0");
  EXPECT_ERROR(make_data_loader(numbers(4), {.timeout = -1.0}),
               "timeout is -1 seconds; it must be at least 0");
  EXPECT_ERROR(make_data_loader(numbers(0), {}), "the dataset is empty");
  EXPECT_ERROR(make_data_loader(numbers(3), {.batch_size = 4, .drop_last = true}),
               "drop_last leaves no batch");
}

/// Records whether its rows were gathered in page-locked memory.
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

TEST(DatasetLoaderTest, BatchesAreGatheredInPageLockedMemory_CUDA) {
  for (const int64_t num_workers : {0, 2}) {
    const auto source = std::make_shared<PinnedSource>();
    DataLoaderOptions options{.batch_size = 4, .num_workers = num_workers, .pin_memory = true};
    const auto first = [&] { return *DatasetLoader(Dataset(source), options).iterate(1)->next(); };
    EXPECT_TRUE(torch::equal(first().input(), torch::arange(4, torch::kFloat)));
    EXPECT_TRUE(source->is_pinned);
    options.transform = [&](Batch batch, const TransformContext&) {
      EXPECT_FALSE(batch.input().is_pinned()) << "only the transform's result is pinned";
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
}  // namespace linkboy::testing::data_loader_test
