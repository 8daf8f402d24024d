#pragma once

#include <cstdint>
#include <vector>

#include "linkboy/data/image_transforms.hpp"
#include "vision/decoder.hpp"

namespace linkboy::vision {

/// How the pixels of one direction become those of another length: bilinear, with antialiasing
/// where the image becomes smaller. These are Pillow's fixed-point numbers.
class Resampling {
 public:
  /// Places [begin, end) of `length`, of which a part of the source begins at `origin` and has
  /// `source_length` pixels.
  Resampling(int64_t source_length, int64_t origin, int64_t length, int64_t begin, int64_t end);

  /// The source pixels that one place is made of, and their weights.
  struct Place {
    int64_t first;
    int64_t count;
    const int32_t* weights;
  };
  Place operator[](int64_t i) const {
    return {places_[i].first, places_[i].count, &weights_[i * max_count_]};
  }
  int64_t size() const { return static_cast<int64_t>(places_.size()); }

  /// All source pixels that take part: [first, end).
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

/// Cuts `source` out of an image, resizes it to `size`, and cuts `part` out of that.
struct ResizePlan {
  Region source;
  ImageSize size{1};
  Region part;
};

/// A plan that leaves an image of this size as it is.
inline ResizePlan whole_image(ImageSize size) {
  const Region all{0, 0, size.height, size.width};
  return {all, size, all};
}

/// The pixels of the image that `plan` needs.
Region needed_region(const ResizePlan& plan);

/// Does so with decoded pixels; writes uint8 [3, part.height, part.width].
void resize_pixels(const Pixels& pixels, const ResizePlan& plan, uint8_t* planes);

}  // namespace linkboy::vision
