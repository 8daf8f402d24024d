#pragma once

#include <cstdint>

namespace linkboy {

/// @throws OptionError if `value` is less than `least`.
void check_at_least(const char* name, int64_t value, int64_t least);

/// The samples of an epoch that one rank processes, as positions in the order that all ranks share
/// (the sampler's order). The order is cut into batches of `batch_size`; batch k of rank r is batch
/// k * num_ranks + r. The k-th batches of all ranks form a round. Together they are the k-th batch
/// of a single process with a batch size of num_ranks * batch_size. All functions take O(1) time
/// and memory.
class BatchShard {
 public:
  /// How to treat a last round that is not full.
  enum class Tail {
    /// Fills the round with the epoch's first samples, repeatedly if the epoch is shorter than a
    /// round. All ranks have the same number of batches, all of them full. For training on several
    /// ranks; the batches are those of accelerate's `BatchSamplerShard` with `even_batches`. A
    /// single process should use `uneven`: it does not have to match other ranks, and accelerate
    /// does not fill the batch in this case either.
    wrap,
    /// Drops the round. All ranks have the same number of batches, all of them full; the number may
    /// be 0. For `drop_last`.
    drop,
    /// Leaves the round incomplete. Each sample occurs once, the last batch may be partial, and
    /// some ranks may have one batch fewer than others, possibly none. For evaluation, and for
    /// training in a single process.
    uneven
  };

  /// @throws OptionError if a size is less than 1, if the rank is not in [0, num_ranks), or if
  ///         positions with `wrap` do not fit into 64 bits.
  BatchShard(int64_t num_epoch_samples, int64_t batch_size, int64_t rank, int64_t num_ranks,
             Tail tail);

  /// Number of batches of this rank.
  int64_t num_batches() const { return num_batches_; }

  /// Largest number of batches of any rank. Loops that communicate run for this number of rounds.
  int64_t num_rounds() const { return num_rounds_; }

  /// Number of samples in batch `k` of this rank; 0 if `k` is at least `num_batches()`.
  int64_t size_of_batch(int64_t k) const;

  /// Returns the position in the epoch, in [0, num_epoch_samples), of sample `i` of this rank's
  /// batch `k`. `i` must be in [0, size_of_batch(k)). The position increases by 1 with `i`, except
  /// that with `wrap` it returns to 0 at the end of the epoch.
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
