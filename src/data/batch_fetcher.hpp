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

/// While it exists, tensor datasets gather the batches of this thread in page-locked memory.
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

/// Prepares the batches [first, end) on the calling thread.
template <class Maker>
class InlineIterator final : public BatchIterator {
 public:
  InlineIterator(Maker maker, int64_t first, int64_t end)
      : maker_(std::move(maker)), next_(first), end_(end) {}

  std::optional<Batch> next() override {
    if (next_ < end_ && !maker_.read(next_)) end_ = next_;
    if (next_ >= end_) return std::nullopt;
    return maker_.make(next_++);
  }

 private:
  Maker maker_;
  int64_t next_;
  int64_t end_;
};

/// The work of the worker threads in an epoch.
struct PrefetchWork {
  /// One maker for each worker.
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

/// Returns the number of workers that an epoch of `num_batches` batches can use.
int64_t num_workers_for(const DataLoaderOptions& options, int64_t num_batches);

/// Returns the batches [first, end) in order. Workers prepare them ahead of the loop.
std::unique_ptr<BatchIterator> prefetch(PrefetchWork work, const DataLoaderOptions& options,
                                        int64_t epoch, int64_t first, int64_t end);

/// Sets the defaults of the fields that loaders of datasets and of streams have in common, and
/// checks the fields.
/// @throws OptionError if an option is out of range.
void set_common_defaults(DataLoaderOptions& options);

}  // namespace linkboy
