#pragma once

#include <ATen/core/Generator.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <iterator>
#include <memory>
#include <optional>
#include <span>
#include <utility>

#include "linkboy/checkpoint/state_dict.hpp"
#include "linkboy/data/batch.hpp"
#include "linkboy/data/dataset.hpp"
#include "linkboy/data/sampler.hpp"
#include "linkboy/export.hpp"
#include "linkboy/util/text_options.hpp"

namespace linkboy {

/// Which samples a transform is working on.
struct LINKBOY_API TransformContext {
  /// Of the loader.
  uint64_t seed;
  /// As `DataLoader::iterate` was told.
  int64_t epoch;
  /// Dataset indices of the batch's samples, in order.
  std::span<const int64_t> indices;

  /// A CPU generator that depends on (seed, epoch, indices[i]) alone: random augmentation drawn
  /// from it is the same whatever the number of workers or the place in the epoch. LibTorch's CPU
  /// generator has 2^32 beginnings, so that now and then two samples share their random numbers.
  at::Generator generator(std::size_t i) const;
};

/// Changes a collated batch on the CPU, on the worker thread (augmentation, normalisation).
using Transform = std::function<Batch(Batch, const TransformContext&)>;

/// Called on each worker thread before it makes its first batch of an epoch, with the worker's
/// number in [0, num_workers).
using WorkerInitFn = std::function<void(int64_t worker)>;

/// One of the processes that share each epoch.
struct DataLoaderShard {
  /// Of this process, in [0, num_ranks).
  int64_t rank = 0;
  /// At least 1.
  int64_t num_ranks = 1;
};

/// How a loader works. A field left unset takes the default named beside it; Trainer overlays the
/// user's fields on its own defaults.
struct LINKBOY_API DataLoaderOptions {
  /// Samples per batch and device. At least 1. Default 8.
  std::optional<int64_t> batch_size{};

  /// A new seeded permutation in every epoch. Default false. Not together with `sampler`.
  std::optional<bool> shuffle{};

  /// Leaves out a last batch that is not full; on several ranks, the last batches that do not make
  /// a full one for each. Default false.
  std::optional<bool> drop_last{};

  /// Threads that make batches ahead of the loop; 0 makes them in the loop. Default 0. Each has its
  /// own copy of a LibTorch dataset (see Dataset).
  std::optional<int64_t> num_workers{};

  /// Batches that each worker may be ahead. At least 1. Default 2.
  std::optional<int64_t> prefetch_factor{};

  /// Puts batches into page-locked memory. Default false. Ignored without a CUDA device.
  std::optional<bool> pin_memory{};

  /// Seconds that the loop waits for a batch of a worker thread before `next` throws; a worker that
  /// hangs is then left behind. At least 0, which waits without end. Default 0. Without workers it
  /// does nothing.
  std::optional<double> timeout{};

  /// Seed of the shuffle and of `transform`'s generators. Default: that of LibTorch's CPU
  /// generator (`torch::manual_seed`), which is read, not advanced.
  std::optional<uint64_t> seed{};

  /// Gives this rank's batches alone: of the batches k * num_ranks to (k + 1) * num_ranks - 1 of
  /// the epoch, the one at `rank` is this loader's batch k. The data, the seed, the sampler and the
  /// batch size must be the same on all ranks. Default: all batches; Trainer sets the process's.
  std::optional<DataLoaderShard> shard{};

  /// On several ranks: all have equally many batches, all full, by going on with the epoch's first
  /// samples at its end. Otherwise each sample is seen once, and some ranks may have one batch less
  /// than others, even none. Default true; Trainer sets false to evaluate.
  std::optional<bool> even_batches{};

  /// The order of the samples, instead of `shuffle`.
  std::shared_ptr<const Sampler> sampler{};

  /// The samples of each batch. Not together with `batch_size`, `shuffle`, `drop_last` or
  /// `sampler`. Ranks share it by batches; with `even_batches` the epoch's first batches fill up
  /// the end.
  std::shared_ptr<const BatchSampler> batch_sampler{};

  /// Makes a batch of single samples. Default: the dataset's own batches.
  CollateFn collate_fn{};

  /// Changes each batch, in the thread that made it. Default: none.
  Transform transform{};

  /// Prepares each worker thread (thread-local state, its number of LibTorch's threads). Random
  /// numbers need none: see TransformContext. An exception is thrown in the loop. Default: none.
  WorkerInitFn worker_init_fn{};

  /// These options, with every field that `user` has set replaced. A `sampler` of the user's
  /// removes a `shuffle` that the user did not set, and a `batch_sampler` also removes
  /// `batch_size`, `drop_last` and `sampler`.
  DataLoaderOptions merged_with(const DataLoaderOptions& user) const;

  LINKBOY_FIELDS(batch_size, shuffle, drop_last, num_workers, prefetch_factor, pin_memory, timeout,
                 seed, even_batches);
};

/// The batches of one epoch, in order. Made by DataLoader::iterate; used by one thread.
class LINKBOY_API BatchIterator {
 public:
  virtual ~BatchIterator() = default;

  /// The next batch, or nothing after the last. Waits for a worker thread if need be.
  /// @throws whatever making that batch threw, on a worker thread or not; Error if a worker took
  ///         longer than `timeout`.
  virtual std::optional<Batch> next() = 0;
};

/// The batches of one epoch for a range-based `for`. Made by DataLoader::batches; can be walked
/// through once.
class BatchRange {
 public:
  /// Of the batches that `iterator` has not given yet.
  explicit BatchRange(std::unique_ptr<BatchIterator> iterator) : iterator_(std::move(iterator)) {}

  /// An input iterator.
  class Iterator {
   public:
    /// Those of an input iterator.
    /// @{
    using iterator_concept = std::input_iterator_tag;
    using difference_type = std::ptrdiff_t;
    using value_type = Batch;
    /// @}
    /// Takes the first batch.
    explicit Iterator(BatchIterator& batches) : batches_(&batches), batch_(batches.next()) {}
    /// The present batch.
    const Batch& operator*() const { return *batch_; }
    /// Takes the next batch. @throws what BatchIterator::next throws.
    /// @{
    Iterator& operator++() {
      batch_.reset();  // it may be given back to the loader's memory before the next one comes
      batch_ = batches_->next();
      return *this;
    }
    void operator++(int) { ++*this; }
    /// @}
    /// Whether there is no batch left.
    bool operator==(std::default_sentinel_t) const { return !batch_; }

   private:
    BatchIterator* batches_;
    std::optional<Batch> batch_;
  };

  /// Takes the first batch. @throws what BatchIterator::next throws.
  Iterator begin() { return Iterator(*iterator_); }
  /// Behind the last batch.
  std::default_sentinel_t end() const { return {}; }

 private:
  std::unique_ptr<BatchIterator> iterator_;
};

/// A source of batches. Trainer needs no more than this interface: give a loader of your own as
/// `TrainOptions::train_dataloader`. `data/stream.hpp` makes loaders of streams and ranges.
class LINKBOY_API DataLoader {
 public:
  virtual ~DataLoader() = default;

  /// Number of batches that an epoch gives to this process; a partial last one counts.
  virtual int64_t size() const = 0;

  /// Samples in a full batch.
  virtual int64_t batch_size() const = 0;

  /// The batches [first_batch, size()) of `epoch` (counted from 1).
  virtual std::unique_ptr<BatchIterator> iterate(int64_t epoch, int64_t first_batch = 0) = 0;

  /// The same for a loop: `for (const Batch& batch : loader->batches(epoch))`.
  BatchRange batches(int64_t epoch, int64_t first_batch = 0) {
    return BatchRange(iterate(epoch, first_batch));
  }

  /// What another loader over the same data needs to give the same batches (its seed, say). Part
  /// of a training state. By default there is nothing.
  virtual StateDict state_dict() const { return {}; }
  /// Takes what `state_dict` of another loader over the same data returned.
  virtual void load_state_dict(const StateDict&) {}

  /// Returns a loader of the batches of one process, for a loader that gives all batches to every
  /// process. Null by default: the loader knows its share, or cannot be shared.
  /// @param defaults  Holds the `shard` and the `seed`; options that this loader was given win.
  virtual std::shared_ptr<DataLoader> shared(const DataLoaderOptions& defaults) const {
    static_cast<void>(defaults);
    return nullptr;
  }
};

class WorkerDatasets;

/// Batches of a Dataset. An epoch is a function of (seed, epoch) alone: workers change neither the
/// order nor the content, as long as a sample is a function of its index (see Dataset about random
/// numbers). `iterate` may be called while another iterator is in use. Copies of a loader share the
/// workers' copies of the data.
class LINKBOY_API DatasetLoader final : public DataLoader {
 public:
  /// @throws Error if the dataset or a sampler is empty, an option is out of its range, `shuffle`
  /// is
  ///         given together with `sampler`, or `batch_sampler` together with `batch_size`,
  ///         `shuffle`, `drop_last` or `sampler`.
  DatasetLoader(Dataset dataset, const DataLoaderOptions& options);

  int64_t size() const override;
  int64_t batch_size() const override { return *options_.batch_size; }
  std::unique_ptr<BatchIterator> iterate(int64_t epoch, int64_t first_batch = 0) override;

  /// The seed. @throws Error if `state` has none.
  StateDict state_dict() const override;
  void load_state_dict(const StateDict& state) override;
  std::shared_ptr<DataLoader> shared(const DataLoaderOptions& defaults) const override;

  /// The options in force: every field with a default is set.
  const DataLoaderOptions& options() const { return options_; }
  /// The data that batches are made of.
  const Dataset& dataset() const { return dataset_; }

 private:
  Dataset dataset_;
  std::shared_ptr<WorkerDatasets> for_workers_;
  DataLoaderOptions given_options_;
  DataLoaderOptions options_;
};

/// @throws Error as DatasetLoader's constructor.
LINKBOY_API std::shared_ptr<DataLoader> make_data_loader(Dataset dataset,
                                                         const DataLoaderOptions& options);

}  // namespace linkboy
