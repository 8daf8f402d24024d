#pragma once

#include <cstdint>

namespace linkboy {

/// The samples of an epoch that one rank sees, as places in the order that all ranks share (that of
/// their sampler). The order is cut into batches of `batch_size`; batch k of rank r is batch k *
/// num_ranks + r. The k-th batches of all ranks form a round. Together they are the k-th batch of a
/// single process with a batch size of num_ranks * batch_size. All functions take O(1) time and
/// memory.
class BatchShard {
 public:
  /// How a last round that is not full is treated.
  enum class Tail {
    /// Fills the round up with the epoch's first samples, repeatedly if the epoch has less than a
    /// round. All ranks have the same number of batches, all of them full. For training on several
    /// ranks; the batches are those of accelerate's `BatchSamplerShard` with `even_batches`. A
    /// single process should use `uneven`: it does not need the same number as other ranks, and
    /// accelerate does not fill up the batch there either.
    wrap,
    /// Drops the round. All ranks have the same number of batches, all of them full; the number may
    /// be 0. For `drop_last`.
    drop,
    /// Keeps the round as it is. Each sample occurs once, the last batch may be partial, and some
    /// ranks may have one batch less than others, possibly none. For evaluation, and for training
    /// in a single process.
    uneven
  };

  /// @throws OptionError if a size is less than 1, if the rank is not in [0, num_ranks), or if
  ///         positions with `wrap` do not fit into 64 bits.
  BatchShard(int64_t num_epoch_samples, int64_t batch_size, int64_t rank, int64_t num_ranks,
             Tail tail);

  /// Number of batches of this rank.
  int64_t num_batches() const { return num_batches_; }

  /// Largest number of batches of any rank. Loops that communicate make this number of rounds.
  int64_t num_rounds() const { return num_rounds_; }

  /// Number of samples in batch `k` of this rank; 0 from `num_batches()` on.
  int64_t size_of_batch(int64_t k) const;

  /// Returns the place in the epoch, in [0, num_epoch_samples), of sample `i` of batch `k` of this
  /// rank. `i` must be in [0, size_of_batch(k)). The place grows by 1 with `i`, except that with
  /// `wrap` it returns to 0 at the end of the epoch.
  int64_t position(int64_t k, int64_t i) const;

  /// Number of samples in all batches of this rank, including repeated ones.
  int64_t num_samples() const;

 private:
  int64_t num_epoch_samples_;
  int64_t batch_size_;
  int64_t rank_;
  int64_t num_ranks_;
  Tail tail_;
  int64_t num_batches_;
  int64_t num_rounds_;
};

}  // namespace linkboy
