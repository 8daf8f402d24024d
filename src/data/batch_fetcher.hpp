#pragma once

#include <ATen/Context.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <utility>
#include <vector>

#include "data/batch_shard.hpp"
#include "linkboy/data/data_loader.hpp"

namespace linkboy {

/// Returns the seed of this process's CPU generator.
inline uint64_t seed_of_default_generator() {
  return at::globalContext().defaultGenerator(at::kCPU).current_seed();
}

/// Returns the samples that a loader with these options (all of which are set) returns. With a
/// `batch_sampler`, the positions of the shard are those of batches instead of samples.
BatchShard shard_of(const DataLoaderOptions& options);

/// Returns, for each batch of this rank, the positions of its samples in the epoch, in the order
/// that all ranks share.
std::vector<std::vector<int64_t>> places_of_batches(const DataLoaderOptions& options,
                                                    int64_t epoch);

/// Whether tensor datasets gather the batches of this thread in page-locked memory.
inline thread_local bool gathers_in_pinned_memory = false;

/// Prepares the batches of an epoch. Each thread has a separate maker.
class BatchMaker {
 public:
  virtual ~BatchMaker() = default;
  /// Reads the data of a batch, if this must happen in the order of the batches. Only one thread at
  /// a time calls it. Returns false if the data ends before the batch.
  virtual bool read(int64_t batch_index) {
    static_cast<void>(batch_index);
    return true;
  }
  /// Prepares the batch whose data was read last.
  virtual Batch make(int64_t batch_index) = 0;
};

/// Prepares any batch of an epoch of a dataset: samples the indices, gathers, collates, transforms
/// and pins.
class BatchFetcher final : public BatchMaker {
 public:
  BatchFetcher(Dataset dataset, const DataLoaderOptions& options, int64_t epoch)
      : dataset_(std::move(dataset)), options_(options), epoch_(epoch), shard_(shard_of(options)) {}

  Batch make(int64_t batch_index) override;

 private:
  std::vector<int64_t> indices_of(int64_t batch_index) const;

  Dataset dataset_;
  DataLoaderOptions options_;
  int64_t epoch_;
  BatchShard shard_;
};

/// The workers' copies of a dataset. They are reused in each epoch, so that each worker needs only
/// one copy, and a copy keeps its state (random numbers, caches). Thread-safe.
class WorkerDatasets {
 public:
  explicit WorkerDatasets(Dataset dataset) : dataset_(std::move(dataset)) {}

  /// Returns one dataset for each of `num_workers` workers, in the same order each time. Creates
  /// those that do not exist yet.
  std::vector<Dataset> take(int64_t num_workers);
  /// Takes back the datasets from `take`, after the workers have ended.
  void give_back(std::vector<Dataset> datasets);

 private:
  const Dataset dataset_;
  std::mutex mutex_;  // guards idle_
  std::vector<Dataset> idle_;
};

/// The work of an epoch.
struct BatchWork {
  /// One maker for each worker, or for the calling thread if there are no workers.
  std::vector<std::unique_ptr<BatchMaker>> makers{};
  /// Whether each of n workers prepares every n-th batch. If false, a worker prepares the next
  /// batch as soon as it is free. Such workers may have a state. Therefore they prepare all batches
  /// that fit into the ring even if the loop leaves the epoch early.
  bool is_striped = false;
  /// Whether workers call `BatchMaker::read`.
  bool reads_in_order = false;
  /// Called after the workers have ended, unless one of them hangs.
  std::function<void()> on_end{};
};

/// Returns the number of makers that an epoch of `num_batches` batches can use; at least 1.
int64_t num_makers_for(const DataLoaderOptions& options, int64_t num_batches);

/// Returns the batches [first, end) in order. Workers prepare them ahead of the loop. Without
/// workers, the calling thread prepares each batch when it needs it.
std::unique_ptr<BatchIterator> make_batches(BatchWork work, const DataLoaderOptions& options,
                                            int64_t epoch, int64_t first, int64_t end);

/// Sets the defaults of the fields that loaders of datasets and of streams have in common, and
/// checks the fields.
/// @throws OptionError if an option is out of range.
void set_common_defaults(DataLoaderOptions& options);

}  // namespace linkboy
