#pragma once

#include <cstdint>
#include <vector>

#include "linkboy/export.hpp"

namespace linkboy {

/// A pseudo-random permutation of [0, size) that is computed instead of stored. Computing the index
/// at any position takes O(1) time on average, so an epoch can start anywhere. The permutation
/// depends only on (size, seed, epoch) and is the same on every platform and rank. Over seeds and
/// epochs, the index at a position, the distance between neighbours and the parity are uniform. If
/// the size is above 20, there are more permutations than 64-bit keys, so not every permutation can
/// occur.
class LINKBOY_API RandomPermutation {
 public:
  /// @throws Error if `size` is negative.
  RandomPermutation(int64_t size, uint64_t seed, int64_t epoch);

  /// The index at `position`, which must be in [0, size).
  int64_t operator[](int64_t position) const;

  /// Number of indices.
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

/// The order in which a loader visits the samples. The loader can start at any position of an
/// epoch, so resuming in mid-epoch does not replay anything. The order must be a pure function of
/// (epoch, position). If the loader has workers, several threads call it at the same time, for
/// positions ahead of the loop.
class LINKBOY_API Sampler {
 public:
  virtual ~Sampler() = default;

  /// Number of samples in an epoch; may differ from the dataset's size.
  virtual int64_t size() const = 0;

  /// Writes the dataset indices of positions [begin, begin + count) of `epoch` to `indices`.
  virtual void sample(int64_t epoch, int64_t begin, int64_t count, int64_t* indices) const = 0;
};

/// The samples of each batch, for cases that a Sampler cannot express: batches of samples with
/// similar lengths, with a fixed number of samples per class, or of different sizes. It must be a
/// pure function of (epoch, batch), and the same on all ranks. If the loader has workers, several
/// threads call it at the same time.
class LINKBOY_API BatchSampler {
 public:
  virtual ~BatchSampler() = default;

  /// Number of batches in an epoch, over all ranks.
  virtual int64_t size() const = 0;

  /// Returns the dataset indices of batch `batch` (in [0, size())) of `epoch`; at least one.
  virtual std::vector<int64_t> sample(int64_t epoch, int64_t batch) const = 0;

  /// Number of samples in a full batch: `DataLoader::batch_size`. Defaults to the size of the first
  /// batch of epoch 1. A run that resumes in mid-epoch on a different number of processes uses it
  /// to find its position.
  virtual int64_t batch_size() const;
};

/// Visits 0, 1, 2, ... in every epoch.
class LINKBOY_API SequentialSampler final : public Sampler {
 public:
  /// Constructs a sampler of the indices in [0, size).
  explicit SequentialSampler(int64_t size) : size_(size) {}
  int64_t size() const override { return size_; }
  void sample(int64_t epoch, int64_t begin, int64_t count, int64_t* indices) const override;

 private:
  int64_t size_;
};

/// Uses a new RandomPermutation in every epoch.
class LINKBOY_API RandomSampler final : public Sampler {
 public:
  /// Constructs a sampler of the indices in [0, size). The same seed produces the same
  /// permutations.
  RandomSampler(int64_t size, uint64_t seed) : size_(size), seed_(seed) {}
  int64_t size() const override { return size_; }
  void sample(int64_t epoch, int64_t begin, int64_t count, int64_t* indices) const override;

 private:
  int64_t size_;
  uint64_t seed_;
};

}  // namespace linkboy
