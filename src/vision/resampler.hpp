#pragma once

#include <cstdint>
#include <vector>

#include "linkboy/data/image_transforms.hpp"
#include "vision/decoder.hpp"

namespace linkboy::vision {

/// Resamples one dimension of an image to another length: bilinear, with antialiasing if the image
/// becomes smaller. Uses Pillow's fixed-point arithmetic.
class Resampling {
 public:
  /// Prepares the pixels [begin, end) of a result of `length` pixels. The source is the part of an
  /// image that begins at `origin` and is `source_length` pixels long.
  Resampling(int64_t source_length, int64_t origin, int64_t length, int64_t begin, int64_t end);

  /// The source pixels that contribute to one pixel of the result, and their weights.
  struct Place {
    int64_t first;
    int64_t count;
    const int32_t* weights;
  };
  Place operator[](int64_t i) const {
    return {places_[i].first, places_[i].count, &weights_[i * max_count_]};
  }
  int64_t size() const { return static_cast<int64_t>(places_.size()); }

  /// The range [first, end) of all source pixels that contribute.
  int64_t first() const { return places_.front().first; }
  int64_t end() const { return places_.back().first + places_.back().count; }

 private:
  struct Span {
    int64_t first;
    int64_t count;
  };
  int64_t max_count_;
  std::vector<Span> places_;
  std::vector<int32_t> weights_;
};

/// Cuts `source` out of an image, resizes it to `size`, and cuts `part` out of the result.
struct ResizePlan {
  Region source;
  ImageSize size{1};
  Region part;
};

/// Returns a plan that does not change an image of this size.
inline ResizePlan whole_image(ImageSize size) {
  const Region all{0, 0, size.height, size.width};
  return {all, size, all};
}

/// Returns the region of the image that `plan` needs.
Region needed_region(const ResizePlan& plan);

/// Applies `plan` to decoded pixels; writes uint8 [3, part.height, part.width].
void resize_pixels(const Pixels& pixels, const ResizePlan& plan, uint8_t* planes);

}  // namespace linkboy::vision
