// Computes a permutation instead of storing it, so that an epoch can begin at any position.

#include "linkboy/data/sampler.hpp"

#include <numeric>

#include "data/hash_pair.hpp"
#include "linkboy/error.hpp"

namespace linkboy {

// A Feistel network and a rotation permute [0, 4^k), the smallest such range that contains [0,
// size). Following a cycle of this permutation until a value is below `size` yields a permutation
// of [0, size), in fewer than four steps on average. With fewer than ten rounds, small sizes show
// regularities. Without the rotation, all permutations of 4^k values would be even.
RandomPermutation::RandomPermutation(int64_t size, uint64_t seed, int64_t epoch) : size_(size) {
  LINKBOY_CHECK(size >= 0, "a permutation of ", size,
                " elements was requested; the size must not be negative.");
  half_bits_ = 1;
  while (half_bits_ < 32 && (uint64_t{1} << (2 * half_bits_)) < static_cast<uint64_t>(size)) {
    ++half_bits_;
  }
  half_mask_ = (uint64_t{1} << half_bits_) - 1;
  uint64_t key = mix(seed, static_cast<uint64_t>(epoch));
  for (uint64_t& round_key : keys_) round_key = key = mix(key, 1);
  offset_ = mix(key, 1);
}

uint64_t RandomPermutation::encrypt(uint64_t value) const {
  uint64_t left = value >> half_bits_;
  uint64_t right = value & half_mask_;
  for (uint64_t key : keys_) {
    const uint64_t next = left ^ (mix(key, right) & half_mask_);
    left = right;
    right = next;
  }
  const uint64_t range_mask = (half_mask_ << half_bits_) | half_mask_;
  return (((left << half_bits_) | right) + offset_) & range_mask;
}

int64_t RandomPermutation::operator[](int64_t position) const {
  auto value = static_cast<uint64_t>(position);
  do {
    value = encrypt(value);
  } while (value >= static_cast<uint64_t>(size_));
  return static_cast<int64_t>(value);
}

int64_t BatchSampler::batch_size() const {
  return static_cast<int64_t>(sample(/*epoch=*/1, /*batch=*/0).size());
}

void SequentialSampler::sample(int64_t, int64_t begin, int64_t count, int64_t* indices) const {
  std::iota(indices, indices + count, begin);
}

void RandomSampler::sample(int64_t epoch, int64_t begin, int64_t count, int64_t* indices) const {
  const RandomPermutation permutation(size_, seed_, epoch);
  for (int64_t i = 0; i < count; ++i) indices[i] = permutation[begin + i];
}

}  // namespace linkboy
