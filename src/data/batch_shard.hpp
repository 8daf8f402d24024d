#pragma once

#include <cstdint>

namespace linkboy {

/// Which samples of an epoch one rank sees, as places in the order that all ranks share (that of
/// their sampler): batch k of rank r is batch k * num_ranks + r of that order, cut into batches of
/// `batch_size`. So the k-th batches of all ranks together, a round, are the k-th batch of one
/// process with num_ranks * batch_size. O(1) in time and memory.
class BatchShard {
 public:
  /// What becomes of a last round that is not full.
  enum class Tail {
    /// Filled up with the epoch's first samples, over and over if it has less than a round: all
    /// ranks have equally many batches, all full. Training on several ranks; batch for batch
    /// accelerate's `BatchSamplerShard` with `even_batches`. A single process has no one to be
    /// even with, and should take `uneven`: accelerate, too, fills nothing up there.
    wrap,
    /// Left out: equally many batches, all full, maybe none. `drop_last`.
    drop,
    /// Unchanged: each sample once, the last batch partial, possibly some ranks with one batch less
    /// with none. Evaluation, and the training of a single process.
    uneven
  };

  /// @throws Error if a size is less than 1, the rank is not in [0, num_ranks), or positions to be
  ///         wrapped do not fit into 64 bits.
  BatchShard(int64_t num_epoch_samples, int64_t batch_size, int64_t rank, int64_t num_ranks,
             Tail tail);

  /// The batches of this rank.
  int64_t num_batches() const { return num_batches_; }

  /// The most batches that any rank has: loops that talk to each other make so many rounds.
  int64_t num_rounds() const { return num_rounds_; }

  /// Samples in batch `k` of this rank; 0 from `num_batches()` on.
  int64_t size_of_batch(int64_t k) const;

  /// The place in the epoch, in [0, num_epoch_samples), of sample `i` of batch `k` of this rank; i
  /// must be in [0, size_of_batch(k)). It grows by 1 with `i`, but for going back to 0 at the
  /// epoch's end (`wrap`).
  int64_t position(int64_t k, int64_t i) const;

  /// In all batches of this rank, repeated ones counted again.
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
