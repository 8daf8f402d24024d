#pragma once

#include <cstdint>
#include <vector>

#include "linkboy/export.hpp"

namespace linkboy {

/// A pseudo-random permutation of [0, size) that needs no memory: the image of any position costs
/// O(1), so an epoch can be entered anywhere. A function of (size, seed, epoch) alone, the same on
/// every platform and rank. Over seeds and epochs, the index at a position, the distance of
/// neighbours and the parity are uniform; a size above 20 has more permutations than there are
/// 64-bit keys, so that not every permutation comes.
class LINKBOY_API RandomPermutation {
 public:
  /// @throws Error if `size` is negative.
  RandomPermutation(int64_t size, uint64_t seed, int64_t epoch);

  /// The index at `position`, which must be in [0, size).
  int64_t operator[](int64_t position) const;

  /// How many indices there are.
  int64_t size() const { return size_; }

 private:
  uint64_t encrypt(uint64_t value) const;

  static constexpr int kRounds = 10;

  int64_t size_;
  int half_bits_;
  uint64_t half_mask_;
  uint64_t keys_[kRounds];
  uint64_t offset_;
};

/// The order in which a loader visits the samples. Position k of an epoch is reachable directly,
/// so resuming in mid-epoch replays nothing. Must be a pure function of (epoch, position): called
/// by one thread, but possibly for positions ahead of the loop.
class LINKBOY_API Sampler {
 public:
  virtual ~Sampler() = default;

  /// Number of samples in an epoch; may differ from the dataset's size.
  virtual int64_t size() const = 0;

  /// Writes the dataset indices of positions [begin, begin + count) of `epoch` to `indices`.
  virtual void sample(int64_t epoch, int64_t begin, int64_t count, int64_t* indices) const = 0;
};

/// The samples of each batch, for batches that no order of the samples alone can make: of samples
/// of similar lengths, of so many per class, of different sizes. Must be a pure function of
/// (epoch, batch), the same on all ranks; several threads call it at the same time.
class LINKBOY_API BatchSampler {
 public:
  virtual ~BatchSampler() = default;

  /// Number of batches in an epoch, of all ranks together.
  virtual int64_t size() const = 0;

  /// The dataset indices of batch `batch` (in [0, size())) of `epoch`; at least one.
  virtual std::vector<int64_t> sample(int64_t epoch, int64_t batch) const = 0;

  /// Samples in a full batch: `DataLoader::batch_size`. By default those of the first batch of
  /// epoch 1. A run that resumes in mid-epoch on another number of processes counts with it.
  virtual int64_t batch_size() const;
};

/// 0, 1, 2, ... in every epoch.
class LINKBOY_API SequentialSampler final : public Sampler {
 public:
  /// Of the indices in [0, size).
  explicit SequentialSampler(int64_t size) : size_(size) {}
  int64_t size() const override { return size_; }
  void sample(int64_t epoch, int64_t begin, int64_t count, int64_t* indices) const override;

 private:
  int64_t size_;
};

/// A fresh RandomPermutation in every epoch.
class LINKBOY_API RandomSampler final : public Sampler {
 public:
  /// Of the indices in [0, size); the same seed gives the same permutations.
  RandomSampler(int64_t size, uint64_t seed) : size_(size), seed_(seed) {}
  int64_t size() const override { return size_; }
  void sample(int64_t epoch, int64_t begin, int64_t count, int64_t* indices) const override;

 private:
  int64_t size_;
  uint64_t seed_;
};

}  // namespace linkboy
