#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <utility>

#include "data/image_random.hpp"
#include "linkboy/data/image_transforms.hpp"

namespace linkboy {

/// The images of a batch for one transform.
struct Images {
  /// @param is_own  Whether the transform may change the tensor.
  /// @throws Error if `tensor` does not contain images, or if `context` does not have one index per
  ///         image.
  Images(const at::Tensor& tensor, const TransformContext& context, uint64_t random_key,
         bool is_own);

  bool is_bytes() const { return pixels.scalar_type() == at::kByte; }
  int64_t image_size() const { return channels * height * width; }
  /// Returns the random numbers of image `i`.
  SampleRandom random(int64_t i) const { return {key, indices[i]}; }

  /// Calls `function` with a value of the type of the pixels.
  void visit_type(const auto& function) const {
    if (is_bytes()) {
      function(uint8_t());
    } else {
      function(float());
    }
  }

  /// Returns pixels that the transform may change. These are `pixels` or a copy of them.
  at::Tensor own_pixels() const;

  at::Tensor pixels;  // [count, channels, height, width], contiguous
  bool is_own;
  int64_t count;
  int64_t channels;
  int64_t height;
  int64_t width;
  std::span<const int64_t> indices;
  uint64_t key;
};

/// The function object in each Transform of images. `compose` recognises it, because the random
/// numbers depend on `occurrence`.
struct ImageTransform {
  Batch operator()(Batch batch, const TransformContext& context) const {
    return apply(std::move(batch), context, /*is_own=*/false);
  }
  /// @param is_own  Whether the transform may change the images of the batch, because another
  ///        transform has made them.
  Batch apply(Batch batch, const TransformContext& context, bool is_own) const;

  RandomKind kind;
  /// Returns new images. May also replace the target of the batch.
  std::function<at::Tensor(const Images&, Batch&)> change;
  /// Number of transforms of this kind before this one in a `compose`.
  uint64_t occurrence = 0;
};

/// Returns a contiguous copy of uint8 or float images [N, C, H, W]. Copies on the calling thread
/// only, which LibTorch's `contiguous` does not.
at::Tensor copy_of(const at::Tensor& images);

/// @throws OptionError if `p` is not in [0, 1].
void check_probability(const char* name, double p);

}  // namespace linkboy
