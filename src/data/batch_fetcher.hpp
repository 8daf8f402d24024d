#pragma once

#include <ATen/Context.h>

#include <cstdint>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "data/batch_shard.hpp"
#include "linkboy/data/data_loader.hpp"

namespace linkboy {

/// The seed of this process's CPU generator.
inline uint64_t seed_of_default_generator() {
  return at::globalContext().defaultGenerator(at::kCPU).current_seed();
}

/// Which samples a loader with these options (all set) gives.
BatchShard shard_of(const DataLoaderOptions& options);

/// While it lives, tensor datasets gather the batches of this thread in page-locked memory.
class PinnedGathering {
 public:
  explicit PinnedGathering(bool is_on);
  ~PinnedGathering();
  PinnedGathering(const PinnedGathering&) = delete;
  PinnedGathering& operator=(const PinnedGathering&) = delete;

  static bool is_on();

 private:
  bool was_on_;
};

/// Makes any batch of an epoch: sampling, gathering, collating, transforming, pinning. One object
/// a thread.
class BatchFetcher {
 public:
  BatchFetcher(Dataset dataset, const DataLoaderOptions& options, int64_t epoch)
      : dataset_(std::move(dataset)), options_(options), epoch_(epoch), shard_(shard_of(options)) {}

  Batch make(int64_t batch_index) const;

 private:
  Dataset dataset_;
  DataLoaderOptions options_;
  int64_t epoch_;
  BatchShard shard_;
};

/// The workers' copies of a dataset. They outlive the epochs, so that a copy is made once per
/// worker, and what a copy has drawn or cached is not forgotten. Thread-safe.
class WorkerDatasets {
 public:
  explicit WorkerDatasets(Dataset dataset) : dataset_(std::move(dataset)) {}

  /// Hands out one for each of `num_workers` workers, in the same order each time; makes those that
  /// are missing.
  std::vector<Dataset> take(int64_t num_workers);
  /// Takes back what `take` returned, after the workers have ended.
  void give_back(std::vector<Dataset> datasets);

 private:
  const Dataset dataset_;
  std::mutex mutex_;  // guards idle_
  std::vector<Dataset> idle_;
};

/// Makes batches [first, end) on threads, ahead of the reader and in order.
std::unique_ptr<BatchIterator> prefetch(std::shared_ptr<WorkerDatasets> datasets,
                                        const DataLoaderOptions& options, int64_t epoch,
                                        int64_t first, int64_t end);

}  // namespace linkboy
