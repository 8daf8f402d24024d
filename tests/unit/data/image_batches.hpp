// Helpers for tests of image transforms.

#pragma once

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <numeric>
#include <tuple>
#include <utility>
#include <vector>

#include "linkboy/data/image_transforms.hpp"
#include "support/toy.hpp"

namespace linkboy::testing {

inline constexpr auto kBytes = torch::kByte;
inline constexpr auto kFloats = torch::kFloat;

/// Returns images without zeros. Neighbouring pixels differ from each other.
inline torch::Tensor counting_images(int64_t count, int64_t channels, int64_t height, int64_t width,
                                     torch::ScalarType type) {
  const auto pixels = torch::arange(count * channels * height * width, torch::kLong);
  const auto values = type == kBytes ? pixels * 37 % 251 + 1 : pixels + 1;
  return values.to(type).reshape({count, channels, height, width});
}

inline Batch result_of(const Transform& transform, Batch batch, uint64_t seed = 1,
                       int64_t epoch = 1) {
  std::vector<int64_t> indices(batch.size());
  std::iota(indices.begin(), indices.end(), 0);
  return transform(std::move(batch), {seed, epoch, indices});
}

inline torch::Tensor result_of(const Transform& transform, const torch::Tensor& images,
                               uint64_t seed = 1, int64_t epoch = 1) {
  return result_of(transform, Batch(images), seed, epoch).input();
}

inline bool same_bits(const torch::Tensor& a, const torch::Tensor& b) {
  return a.scalar_type() == b.scalar_type() && torch::equal(a, b);
}

inline double mean_of(const torch::Tensor& values) {
  return values.to(torch::kDouble).mean().item<double>();
}

/// Returns which images of a batch differ from each other, as a mask [N].
inline torch::Tensor differing_images(const torch::Tensor& a, const torch::Tensor& b) {
  return (a != b).flatten(1).any(1);
}

/// Returns the chi-square statistic of `counts` for equally likely cells. If the cells really are
/// equally likely, it almost never exceeds twice their number.
inline double chi_square(const std::vector<double>& counts) {
  const double expected = std::accumulate(counts.begin(), counts.end(), 0.0) / counts.size();
  double sum = 0.0;
  for (const double count : counts) sum += (count - expected) * (count - expected) / expected;
  return sum;
}

struct Box {
  int64_t top, left, bottom, right;
  int64_t area() const { return (bottom - top) * (right - left); }
};

/// Returns the smallest box around all true values of a [H, W] mask. If all values are false, the
/// box is empty.
inline Box box_of(const torch::Tensor& mask) {
  const auto places = mask.nonzero();
  if (places.size(0) == 0) return {0, 0, 0, 0};
  const auto least = std::get<0>(places.min(0));
  const auto most = std::get<0>(places.max(0));
  return {least[0].item<int64_t>(), least[1].item<int64_t>(), most[0].item<int64_t>() + 1,
          most[1].item<int64_t>() + 1};
}

inline torch::Tensor part_of(const torch::Tensor& image, const Box& box) {
  return image.slice(-2, box.top, box.bottom).slice(-1, box.left, box.right);
}

class ImageTransformsTest : public ::testing::TestWithParam<torch::ScalarType> {
 private:
  // The reference implementations consist of many small operations, for which several threads are
  // slower than one.
  SingleThread single_thread_;
};

inline Batch do_nothing(Batch batch, const TransformContext&) { return batch; }

}  // namespace linkboy::testing
