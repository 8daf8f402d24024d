#pragma once

#include <algorithm>
#include <cstdint>
#include <type_traits>
#include <vector>

#include "data/image_random.hpp"
#include "linkboy/data/image_transforms.hpp"

namespace linkboy {

/// Rows [top, bottom) and columns [left, right).
struct Rectangle {
  int64_t top;
  int64_t left;
  int64_t bottom;
  int64_t right;

  bool empty() const { return top >= bottom || left >= right; }
  Rectangle clipped(int64_t height, int64_t width) const {
    return {std::max<int64_t>(top, 0), std::max<int64_t>(left, 0), std::min(bottom, height),
            std::min(right, width)};
  }
  Rectangle shifted(int64_t down, int64_t across) const {
    return {top + down, left + across, bottom + down, right + across};
  }
};

/// A rectangle that is painted over the image.
struct Patch {
  Rectangle where;
  const float* colour;  // one value per channel; null for noise
  SampleRandom noise;
};

/// A map that returns each pixel unchanged.
struct Copy {
  template <class T>
  T operator()(T value) const {
    return value;
  }
};

/// The description of an output image: pixels of the source image in a window, and patches painted
/// over them in order. Patches cover everything outside of the window.
class Canvas {
 public:
  void reset(int64_t height, int64_t width) {
    height_ = height;
    width_ = width;
    window_ = {0, 0, height, width};
    row_shift_ = column_shift_ = 0;
    flipped_ = false;
    patches_.clear();
  }

  /// Crops the canvas to [top, top + height) x [left, left + width). Parts outside of the old
  /// canvas are painted with `colour`.
  void crop(int64_t top, int64_t left, ImageSize size, const float* colour) {
    const Rectangle old = Rectangle{0, 0, height_, width_}.shifted(-top, -left);
    height_ = size.height;
    width_ = size.width;
    window_ = window_.shifted(-top, -left).clipped(height_, width_);
    row_shift_ -= top;
    column_shift_ -= left;
    for (auto& patch : patches_) {
      patch.where = patch.where.shifted(-top, -left).clipped(height_, width_);
    }
    const Rectangle seen = old.clipped(height_, width_);
    paint({0, 0, seen.top, width_}, colour);
    paint({seen.bottom, 0, height_, width_}, colour);
    paint({seen.top, 0, seen.bottom, seen.left}, colour);
    paint({seen.top, seen.right, seen.bottom, width_}, colour);
  }

  void flip() {
    mirror(window_);
    for (auto& patch : patches_) mirror(patch.where);
    column_shift_ = width_ - 1 - column_shift_;
    flipped_ = !flipped_;
  }

  void paint(const Rectangle& where, const float* colour) {
    patches_.push_back({where.clipped(height_, width_), colour, SampleRandom(0, 0)});
  }

  void paint_noise(const Rectangle& where, const SampleRandom& noise) {
    patches_.push_back({where, nullptr, noise});
  }

  /// Draws channel `channel`, whose pixels begin at `source`, and applies `map` to each pixel. The
  /// strides are in pixels. Noise continues from one channel to the next, so draw them in order.
  template <class In, class Out, class Map>
  void draw_channel(const In* source, int64_t row_stride, int64_t column_stride, int64_t channel,
                    Out* out, Map map) {
    if (!window_.empty()) {
      const int64_t first_column =
          flipped_ ? column_shift_ - window_.left : window_.left - column_shift_;
      const int64_t step = flipped_ ? -column_stride : column_stride;
      for (int64_t row = window_.top; row < window_.bottom; ++row) {
        const In* from = source + (row - row_shift_) * row_stride + first_column * column_stride;
        draw_row(from, step, window_.right - window_.left, out + row * width_ + window_.left, map);
      }
    }
    for (auto& patch : patches_) draw_patch(patch, channel, out);
  }

 private:
  template <class In, class Out, class Map>
  static void draw_row(const In* from, int64_t step, int64_t count, Out* out, Map map) {
    // Separate loops, because the compiler optimises them better than one loop with a variable
    // step.
    if (step == 1) {
      if constexpr (std::is_same_v<Map, Copy>) {
        std::copy_n(from, count, out);
      } else {
        for (int64_t i = 0; i < count; ++i) out[i] = map(from[i]);
      }
    } else if (step == -1) {
      for (int64_t i = 0; i < count; ++i) out[i] = map(from[-i]);
    } else {
      for (int64_t i = 0; i < count; ++i) out[i] = map(from[i * step]);
    }
  }

  template <class Out>
  void draw_patch(Patch& patch, int64_t channel, Out* out) const {
    const Rectangle& where = patch.where;
    if (where.empty()) return;
    for (int64_t row = where.top; row < where.bottom; ++row) {
      Out* begin = out + row * width_ + where.left;
      Out* end = out + row * width_ + where.right;
      if (patch.colour != nullptr) {
        std::fill(begin, end, static_cast<Out>(patch.colour[channel]));
      } else {
        std::generate(begin, end, [&] { return static_cast<Out>(patch.noise.normal()); });
      }
    }
  }

  void mirror(Rectangle& rectangle) const {
    const int64_t left = rectangle.left;
    rectangle.left = width_ - rectangle.right;
    rectangle.right = width_ - left;
  }

  int64_t height_ = 0;
  int64_t width_ = 0;
  Rectangle window_{};
  // Column x shows the image's column x - column_shift_, or column_shift_ - x if flipped.
  int64_t row_shift_ = 0;
  int64_t column_shift_ = 0;
  bool flipped_ = false;
  std::vector<Patch> patches_;
};

}  // namespace linkboy
