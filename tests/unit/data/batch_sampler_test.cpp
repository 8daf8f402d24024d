// Tests of batch samplers, and of the loader's options worker_init_fn and timeout.

#include "linkboy/data/sampler.hpp"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <atomic>
#include <chrono>
#include <limits>
#include <mutex>
#include <set>
#include <thread>

#include "support/expect_error.hpp"
#include "unit/data/loaded_batches.hpp"

namespace linkboy::testing::batch_sampler_test {
namespace {

/// Batch b has the b + 1 samples 9 - epoch, 8 - epoch, ...
class Growing : public BatchSampler {
 public:
  explicit Growing(int64_t size) : size_(size) {}
  int64_t size() const override { return size_; }
  Samples sample(int64_t epoch, int64_t batch) const override {
    Samples indices;
    for (int64_t i = 0; i <= batch; ++i) indices.push_back(9 - epoch - i);
    return indices;
  }

 private:
  int64_t size_;
};

/// Returns a loader of ten numbers with three such batches.
std::shared_ptr<DataLoader> growing(DataLoaderOptions options = {}) {
  options.batch_sampler = std::make_shared<Growing>(3);
  return make_data_loader(numbers(10), options);
}

TEST(BatchSamplerTest, DeterminesTheSamplesOfABatch) {
  for (const int64_t num_workers : {0, 2}) {
    const auto loader = growing({.num_workers = num_workers});
    EXPECT_EQ(loader->size(), 3);
    EXPECT_EQ(loader->batch_size(), 1);
    EXPECT_EQ(batches_of(*loader, 1), (Batches{{8}, {8, 7}, {8, 7, 6}}));
    EXPECT_EQ(batches_of(*loader, 2, 1), (Batches{{7, 6}, {7, 6, 5}}));
  }
}

TEST(BatchSamplerTest, IsSharedBetweenRanksByBatches) {
  const auto of_rank = [](int64_t rank, bool even_batches) {
    const auto loader = growing({.shard = DataLoaderShard{rank, 2}, .even_batches = even_batches});
    const Batches batches = batches_of(*loader, 1);
    EXPECT_EQ(loader->size(), static_cast<int64_t>(batches.size()));
    return batches;
  };
  EXPECT_EQ(of_rank(0, false), (Batches{{8}, {8, 7, 6}}));
  EXPECT_EQ(of_rank(1, false), (Batches{{8, 7}}));
  EXPECT_EQ(of_rank(0, true), (Batches{{8}, {8, 7, 6}}));
  EXPECT_EQ(of_rank(1, true), (Batches{{8, 7}, {8}}));  // the first batch fills the last round
}

TEST(BatchSamplerTest, ExcludesTheOptionsThatItReplaces) {
  EXPECT_ERROR(growing({.batch_size = 2}), "both batch_size and a batch_sampler are set");
  EXPECT_ERROR(growing({.shuffle = true}), "both shuffle and a batch_sampler are set");
  EXPECT_ERROR(growing({.drop_last = true}), "both drop_last and a batch_sampler are set");
  EXPECT_ERROR(growing({.sampler = std::make_shared<SequentialSampler>(10)}),
               "both a sampler and a batch_sampler are set");
  EXPECT_EQ(growing({.shuffle = false, .drop_last = false})->size(), 3);
}

TEST(BatchSamplerTest, RemovesTheDefaultsThatItReplaces) {
  const DataLoaderOptions defaults{.batch_size = 8,
                                   .shuffle = true,
                                   .drop_last = true,
                                   .sampler = std::make_shared<SequentialSampler>(10)};
  const auto merged = defaults.merged_with({.batch_sampler = std::make_shared<Growing>(2)});
  EXPECT_EQ(make_data_loader(numbers(10), merged)->size(), 2);
}

TEST(BatchSamplerTest, MustHaveABatchWithASample) {
  class Empty : public BatchSampler {
   public:
    int64_t size() const override { return 1; }
    Samples sample(int64_t, int64_t) const override { return {}; }
    int64_t batch_size() const override { return 4; }
  };
  EXPECT_ERROR(make_data_loader(numbers(4), {.batch_sampler = std::make_shared<Growing>(0)}),
               "the batch_sampler returns no batches");
  const auto loader = make_data_loader(numbers(4), {.batch_sampler = std::make_shared<Empty>()});
  EXPECT_EQ(loader->batch_size(), 4);
  EXPECT_ERROR(batches_of(*loader, 1),
               "the batch_sampler returns no sample for batch 0 of epoch 1");
}

TEST(BatchSamplerTest, ALoadedStateKeepsTheBatches) {
  const auto loader = growing({.seed = 1});
  loader->load_state_dict(growing({.seed = 2})->state_dict());
  EXPECT_EQ(batches_of(*loader, 1), (Batches{{8}, {8, 7}, {8, 7, 6}}));
}

TEST(WorkerInitTest, IsCalledOnEachWorkerThreadBeforeItsFirstBatch) {
  static thread_local int64_t own_number = -1;
  std::mutex mutex;
  std::set<int64_t> workers;
  std::atomic<bool> is_late = false;
  DataLoaderOptions options{.batch_size = 2, .num_workers = 3};
  options.transform = [&](Batch batch, const TransformContext&) {
    if (own_number < 0) is_late = true;
    return batch;
  };
  options.worker_init_fn = [&](int64_t worker) {
    own_number = worker;
    const std::lock_guard lock(mutex);
    workers.insert(worker);
  };
  EXPECT_EQ(batches_of(*make_data_loader(numbers(40), options), 1).size(), 20U);
  EXPECT_EQ(workers, (std::set<int64_t>{0, 1, 2}));
  EXPECT_FALSE(is_late);
}

TEST(WorkerInitTest, IsNotCalledWithoutWorkers) {
  bool is_called = false;
  const auto loader = make_data_loader(
      numbers(4), {.batch_size = 2, .worker_init_fn = [&](int64_t) { is_called = true; }});
  EXPECT_EQ(batches_of(*loader, 1).size(), 2U);
  EXPECT_FALSE(is_called);
}

TEST(WorkerInitTest, ItsExceptionIsThrownInTheLoop) {
  const auto loader = make_data_loader(
      numbers(4), {.batch_size = 2, .num_workers = 1, .worker_init_fn = [](int64_t worker) {
                     throw Error("no memory for worker " + std::to_string(worker));
                   }});
  EXPECT_ERROR(batches_of(*loader, 1), "no memory for worker 0");
}

TEST(WorkerTimeoutTest, AWorkerThatHangsEndsTheLoopWithAnError) {
  auto is_released = std::make_shared<std::atomic<bool>>(false);
  auto num_hanging = std::make_shared<std::atomic<int>>(0);
  {
    DataLoaderOptions options{.batch_size = 2, .num_workers = 1, .timeout = 0.05};
    options.transform = [is_released, num_hanging](Batch batch, const TransformContext& context) {
      if (context.indices[0] == 0) return batch;
      ++*num_hanging;
      while (!*is_released) std::this_thread::sleep_for(std::chrono::milliseconds(1));
      --*num_hanging;
      return batch;
    };
    const auto loader = make_data_loader(numbers(4), options);
    const auto batches = loader->iterate(3);
    // On a busy machine, the first batch may also take longer than the timeout.
    EXPECT_ERROR(rest_of(*batches), "within 0.05 s (timeout)");
    EXPECT_ERROR(batches->next(), "of epoch 3 within 0.05 s (timeout)");
  }
  // The iterator has been destroyed although the worker is still running.
  *is_released = true;
  while (*num_hanging > 0) std::this_thread::sleep_for(std::chrono::milliseconds(1));
}

TEST(WorkerTimeoutTest, DoesNotChangeBatches) {
  const auto with = [](double timeout) {
    DataLoaderOptions options{.batch_size = 3, .shuffle = true, .num_workers = 2, .seed = 1};
    options.timeout = timeout;
    return batches_of(*make_data_loader(numbers(20), options), 1);
  };
  EXPECT_EQ(with(0.0), with(std::numeric_limits<double>::infinity()));
}

}  // namespace
}  // namespace linkboy::testing::batch_sampler_test
