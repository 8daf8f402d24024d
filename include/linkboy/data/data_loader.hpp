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

/// The samples of the batch that a transform processes.
struct LINKBOY_API TransformContext {
  /// Seed of the loader.
  uint64_t seed;
  /// The epoch that was passed to `DataLoader::iterate`.
  int64_t epoch;
  /// Dataset indices of the batch's samples, in order.
  std::span<const int64_t> indices;

  /// Returns a CPU generator whose numbers depend only on (seed, epoch, indices[i]), and not on the
  /// number of workers or the position in the epoch. Use it for random augmentation. LibTorch's CPU
  /// generator has 2^32 initial states, so two samples occasionally get the same random numbers.
  at::Generator generator(std::size_t i) const;
};

/// A function that changes a collated batch on the CPU, for example for augmentation or
/// normalisation. It runs on the thread that made the batch.
using Transform = std::function<Batch(Batch, const TransformContext&)>;

/// A function that is called on each worker thread before the worker makes its first batch of an
/// epoch. It receives the worker's number in [0, num_workers).
using WorkerInitFn = std::function<void(int64_t worker)>;

/// Identifies one of the processes that share each epoch.
struct DataLoaderShard {
  /// Rank of this process, in [0, num_ranks).
  int64_t rank = 0;
  /// Number of processes; at least 1.
  int64_t num_ranks = 1;
};

/// Options of a loader. A field that is not set has the default in its comment. In a Trainer, the
/// defaults come from `Trainer::default_train_dataloader_options` and
/// `Trainer::default_eval_dataloader_options`.
struct LINKBOY_API DataLoaderOptions {
  /// Number of samples per batch and device. Must be at least 1. Default: 8.
  std::optional<int64_t> batch_size{};

  /// Whether each epoch visits the samples in a new permutation, which `seed` determines. Default:
  /// false. Cannot be combined with `sampler`.
  std::optional<bool> shuffle{};

  /// Whether to drop the last batch if it is not full. With several ranks, drops the last batches
  /// unless there is a full one for each rank. Default: false.
  std::optional<bool> drop_last{};

  /// Number of threads that make batches ahead of the loop; 0 makes them in the loop. Default: 0.
  /// Each thread has its own copy of a LibTorch dataset (see Dataset).
  std::optional<int64_t> num_workers{};

  /// Number of batches that each worker may make ahead. Must be at least 1. Default: 2.
  std::optional<int64_t> prefetch_factor{};

  /// Whether to put batches into page-locked memory. Default: false. Ignored on a machine without
  /// an accelerator.
  std::optional<bool> pin_memory{};

  /// Maximum time in seconds that the loop waits for a batch from a worker thread; then `next`
  /// throws. The same limit applies when the loop leaves an epoch and waits for the workers to end;
  /// then a hanging worker is abandoned. Must not be negative; 0 waits indefinitely. Default: 0.
  /// Has no effect without workers.
  std::optional<double> timeout{};

  /// Seed of the shuffle and of the generators of `transform`. Default: the seed of LibTorch's CPU
  /// generator (`torch::manual_seed`), which is read but not advanced. Two loaders, or two runs of
  /// a program, therefore have the same order, unless you give each its own seed.
  std::optional<uint64_t> seed{};

  /// If set, the loader returns only the batches of one rank: batch k of this loader is batch k *
  /// num_ranks + rank of the epoch. The data, the seed, the sampler and the batch size must be the
  /// same on all ranks. Default: all batches. Trainer sets the shard of the process.
  std::optional<DataLoaderShard> shard{};

  /// Whether all ranks get the same number of batches, all of them full. To achieve this, the epoch
  /// is extended with its first samples. If false, each sample is used once, and some ranks may get
  /// one batch less than others, or no batch. Has no effect with one rank. Default: true. Trainer
  /// sets false for evaluation.
  std::optional<bool> even_batches{};

  /// Determines the order of the samples. Cannot be combined with `shuffle`. Default: the order of
  /// `shuffle`.
  std::shared_ptr<const Sampler> sampler{};

  /// Determines the samples of each batch. Cannot be combined with `batch_size`, `shuffle`,
  /// `drop_last` or `sampler`. With several ranks, its batches are distributed over the ranks; with
  /// `even_batches`, the epoch's first batches are repeated at the end.
  std::shared_ptr<const BatchSampler> batch_sampler{};

  /// Makes a batch from single samples. Default: the dataset makes the batches.
  CollateFn collate_fn{};

  /// Changes each batch, on the thread that made it. Default: none.
  Transform transform{};

  /// Prepares each worker thread (for example thread-local state, or the number of LibTorch's
  /// threads). Not needed for random numbers; see TransformContext. The loop rethrows its
  /// exceptions. Default: none.
  WorkerInitFn worker_init_fn{};

  /// Returns these options, with the fields that are set in `user` replaced. If `user` contains a
  /// `sampler`, removes a `shuffle` that comes from these options. If it contains a
  /// `batch_sampler`, also removes `batch_size`, `drop_last` and `sampler`.
  [[nodiscard]] DataLoaderOptions merged_with(const DataLoaderOptions& user) const;

  LINKBOY_FIELDS(batch_size, shuffle, drop_last, num_workers, prefetch_factor, pin_memory, timeout,
                 seed, even_batches);
};

/// The batches of one epoch, in order. `DataLoader::iterate` returns it. Use it from one thread.
class LINKBOY_API BatchIterator {
 public:
  virtual ~BatchIterator() = default;

  /// Returns the next batch, or nullopt after the last one. Waits for a worker thread if necessary.
  ///
  /// The caller has used the previous batch, so you may fill its tensors again. A copy of
  /// page-locked memory to a device may still be in progress then; linkboy waits for it before this
  /// call if you have kept the tensor or its storage. It does not wait for tensors in
  /// `Batch::values`, or in memory that LibTorch does not own, such as that of `from_blob`.
  /// @throws Any exception that occurred while the batch was made, also on a worker thread; Error
  ///         if a worker took longer than `timeout`.
  virtual std::optional<Batch> next() = 0;
};

/// The batches of one epoch for a range-based `for`. `DataLoader::batches` returns it. You can
/// iterate over it only once.
class BatchRange {
 public:
  /// Constructs a range of the batches that `iterator` has not returned yet.
  explicit BatchRange(std::unique_ptr<BatchIterator> iterator) : iterator_(std::move(iterator)) {}

  /// An input iterator.
  class Iterator {
   public:
    /// The types of an input iterator.
    /// @{
    using iterator_concept = std::input_iterator_tag;
    using difference_type = std::ptrdiff_t;
    using value_type = Batch;
    /// @}
    /// Fetches the first batch.
    explicit Iterator(BatchIterator& batches) : batches_(&batches), batch_(batches.next()) {}
    /// The current batch.
    const Batch& operator*() const { return *batch_; }
    /// Fetches the next batch.
    /// @throws The same exceptions as BatchIterator::next.
    /// @{
    Iterator& operator++() {
      batch_.reset();  // frees its memory before the next batch is made
      batch_ = batches_->next();
      return *this;
    }
    void operator++(int) { ++*this; }
    /// @}
    /// Whether there are no more batches.
    bool operator==(std::default_sentinel_t) const { return !batch_; }

   private:
    BatchIterator* batches_;
    std::optional<Batch> batch_;
  };

  /// Fetches the first batch.
  /// @throws The same exceptions as BatchIterator::next.
  Iterator begin() { return Iterator(*iterator_); }
  /// The end of the range.
  std::default_sentinel_t end() const { return {}; }

 private:
  std::unique_ptr<BatchIterator> iterator_;
};

/// A source of batches. Trainer needs only this interface: pass a custom loader as
/// `TrainOptions::train_dataloader`. `data/stream.hpp` contains loaders of streams and ranges.
class LINKBOY_API DataLoader {
 public:
  virtual ~DataLoader() = default;

  /// Number of batches per epoch for this process, including a partial last one.
  virtual int64_t size() const = 0;

  /// Number of samples in a full batch.
  virtual int64_t batch_size() const = 0;

  /// Returns the batches [first_batch, size()) of `epoch` (counted from 1).
  [[nodiscard]] virtual std::unique_ptr<BatchIterator> iterate(int64_t epoch,
                                                               int64_t first_batch = 0) = 0;

  /// Returns the same batches for a loop: `for (const Batch& batch : loader->batches(epoch))`.
  [[nodiscard]] BatchRange batches(int64_t epoch, int64_t first_batch = 0) {
    return BatchRange(iterate(epoch, first_batch));
  }

  /// Returns at most `max_batches` batches, for example to compute statistics. The training then
  /// continues as if they had not been read. The default returns the first batches of `epoch`; you
  /// need not use all of them. A loader of a single stream returns the next batches, and keeps them
  /// in memory until the training takes them.
  [[nodiscard]] virtual std::unique_ptr<BatchIterator> peek(int64_t epoch, int64_t max_batches) {
    static_cast<void>(max_batches);
    return iterate(epoch);
  }

  /// Returns the state (such as the seed) that another loader of the same data needs to return the
  /// same batches. It is part of a training state. Empty by default.
  [[nodiscard]] virtual StateDict state_dict() const { return {}; }
  /// Restores a state that `state_dict` of another loader of the same data returned.
  virtual void load_state_dict(const StateDict&) {}

  /// If this loader returns all batches on every process, returns a loader of one process's share.
  /// Returns null if the loader already returns only a share or cannot be shared; this is the
  /// default.
  /// @param defaults  Contains `shard`, `even_batches` and `seed`; a first call without `seed` only
  ///        checks whether the result is null. Options that were set for this loader take
  ///        precedence.
  [[nodiscard]] virtual std::shared_ptr<DataLoader> shared(
      const DataLoaderOptions& defaults) const {
    static_cast<void>(defaults);
    return nullptr;
  }

  /// Whether this loader returns only the batches of its own process. With several processes, it is
  /// an error if this returns false, the default, and `shared` returns null: each process would use
  /// all batches.
  virtual bool returns_own_share() const { return false; }
};

class WorkerDatasets;

/// A loader of the batches of a Dataset. The batches of an epoch depend only on the seed and the
/// epoch: workers change neither the order nor the contents, provided that each sample depends only
/// on its index (see Dataset about random numbers). You can call `iterate` while another iterator
/// is in use. Copies of a loader share the workers' copies of the data.
class LINKBOY_API DatasetLoader final : public DataLoader {
 public:
  /// @throws OptionError if an option is out of range, if a sampler is empty, or if `shuffle` is
  ///         combined with `sampler`, or `batch_sampler` with `batch_size`, `shuffle`, `drop_last`
  ///         or `sampler`; Error if the dataset is empty, or if `drop_last` leaves no batch.
  DatasetLoader(Dataset dataset, const DataLoaderOptions& options);

  int64_t size() const override;
  int64_t batch_size() const override { return *options_.batch_size; }
  std::unique_ptr<BatchIterator> iterate(int64_t epoch, int64_t first_batch = 0) override;

  /// Returns the seed.
  StateDict state_dict() const override;
  /// Restores the seed.
  /// @throws Error if `state` does not contain a seed.
  void load_state_dict(const StateDict& state) override;
  std::shared_ptr<DataLoader> shared(const DataLoaderOptions& defaults) const override;
  /// Whether `shard` was set.
  bool returns_own_share() const override { return given_options_.shard.has_value(); }

  /// The effective options: every field with a default is set.
  const DataLoaderOptions& options() const { return options_; }
  /// The data of the batches.
  const Dataset& dataset() const { return dataset_; }

 private:
  Dataset dataset_;
  std::shared_ptr<WorkerDatasets> for_workers_;
  DataLoaderOptions given_options_;
  DataLoaderOptions options_;
};

/// Returns a loader of the batches of `dataset`.
/// @throws The same errors as DatasetLoader's constructor.
[[nodiscard]] LINKBOY_API std::shared_ptr<DataLoader> make_data_loader(
    Dataset dataset, const DataLoaderOptions& options);

}  // namespace linkboy
