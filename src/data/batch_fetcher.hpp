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

/// The seed of this process's CPU generator.
inline uint64_t seed_of_default_generator() {
  return at::globalContext().defaultGenerator(at::kCPU).current_seed();
}

/// Which samples a loader with these options (all set) gives; with a `batch_sampler`, which
/// batches, each of which is one place of the shard.
BatchShard shard_of(const DataLoaderOptions& options);

/// The place of each sample of this rank's batches, one batch after the other, in the order of all
/// ranks' batches.
std::vector<std::vector<int64_t>> places_of_batches(const DataLoaderOptions& options,
                                                    int64_t epoch);

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

/// Makes the batches of an epoch. One object a thread.
class BatchMaker {
 public:
  virtual ~BatchMaker() = default;
  /// Reads what the batch is made of, if that must happen in the order of the batches: only one
  /// thread at a time does. Returns false if the data end before it.
  virtual bool read(int64_t batch_index) {
    static_cast<void>(batch_index);
    return true;
  }
  /// Makes the batch that was read last.
  virtual Batch make(int64_t batch_index) = 0;
};

/// Makes any batch of an epoch of a dataset: sampling, gathering, collating, transforming, pinning.
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

/// Makes batches [first, end) in the loop itself.
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

/// What worker threads do in an epoch.
struct PrefetchWork {
  /// One for each worker.
  std::vector<std::unique_ptr<BatchMaker>> makers{};
  /// Each worker takes every n-th batch, rather than the next one when it is free.
  bool is_striped = false;
  /// `BatchMaker::read` is called.
  bool reads_in_order = false;
  /// A reader that leaves early leaves the data where they would be if the workers had kept a whole
  /// ring ahead of it: at the same place on all ranks and in every run. Implied by `is_striped`.
  bool fills_ring = false;
  /// Called after the workers have ended. Not called if one of them hangs.
  std::function<void()> on_end{};
};

/// The number of workers that an epoch of `num_batches` batches can use.
int64_t num_workers_for(const DataLoaderOptions& options, int64_t num_batches);

/// Makes batches [first, end) on threads, ahead of the reader and in order.
std::unique_ptr<BatchIterator> prefetch(PrefetchWork work, const DataLoaderOptions& options,
                                        int64_t epoch, int64_t first, int64_t end);

/// The fields that the loaders of datasets and of streams have in common, set and checked.
/// @throws OptionError if one is out of its range.
void set_common_defaults(DataLoaderOptions& options);

}  // namespace linkboy
