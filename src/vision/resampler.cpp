// Resizes the rows and then the columns of an image in Pillow's fixed-point arithmetic.

#include "vision/resampler.hpp"

#include <algorithm>
#include <cmath>

namespace linkboy::vision {
namespace {

constexpr int kFractionBits = 22;  // a weight is an integer over 2^22, as in Pillow
constexpr int32_t kHalf = 1 << (kFractionBits - 1);

/// Rounds like Pillow: negative values are rounded towards zero.
int64_t rounded(double value) {
  return static_cast<int64_t>(value + 0.5);  // NOLINT(bugprone-incorrect-roundings)
}

uint8_t to_byte(int32_t sum) {
  return static_cast<uint8_t>(std::clamp(sum >> kFractionBits, 0, 255));
}

/// Resizes a row of pixels and writes one row to each of three planes.
void resize_row(const uint8_t* pixels, const Resampling& across, int64_t left, uint8_t* planes,
                int64_t plane_size) {
  for (int64_t x = 0; x < across.size(); ++x) {
    const auto [first, count, weights] = across[x];
    const uint8_t* pixel = pixels + 3 * (first - left);
    int32_t red = kHalf;
    int32_t green = kHalf;
    int32_t blue = kHalf;
    for (int64_t i = 0; i < count; ++i, pixel += 3) {
      red += pixel[0] * weights[i];
      green += pixel[1] * weights[i];
      blue += pixel[2] * weights[i];
    }
    planes[x] = to_byte(red);
    planes[x + plane_size] = to_byte(green);
    planes[x + 2 * plane_size] = to_byte(blue);
  }
}

/// Combines consecutive rows of `width` bytes into one row.
void resize_column(const uint8_t* rows, int64_t width, const Resampling::Place& place,
                   int32_t* sums, uint8_t* target) {
  std::fill_n(sums, width, kHalf);
  for (int64_t i = 0; i < place.count; ++i, rows += width) {
    const int32_t weight = place.weights[i];
    for (int64_t x = 0; x < width; ++x) sums[x] += rows[x] * weight;
  }
  for (int64_t x = 0; x < width; ++x) target[x] = to_byte(sums[x]);
}

/// Copies the part of the source from rows of pixels to planes.
void copy_pixels(const Pixels& pixels, const ResizePlan& plan, uint8_t* planes) {
  const int64_t plane_size = plan.part.height * plan.part.width;
  for (int64_t y = 0; y < plan.part.height; ++y) {
    const uint8_t* pixel = pixels.row(plan.source.top + plan.part.top + y) +
                           3 * (plan.source.left + plan.part.left - pixels.region.left);
    for (int64_t x = 0; x < plan.part.width; ++x, ++planes, pixel += 3) {
      planes[0] = pixel[0];
      planes[plane_size] = pixel[1];
      planes[2 * plane_size] = pixel[2];
    }
  }
}

Resampling across(const ResizePlan& plan) {
  return {plan.source.width, plan.source.left, plan.size.width, plan.part.left,
          plan.part.left + plan.part.width};
}

Resampling down(const ResizePlan& plan) {
  return {plan.source.height, plan.source.top, plan.size.height, plan.part.top,
          plan.part.top + plan.part.height};
}

}  // namespace

Resampling::Resampling(int64_t source_length, int64_t origin, int64_t length, int64_t begin,
                       int64_t end) {
  const double scale = static_cast<double>(source_length) / static_cast<double>(length);
  const double support = std::max(scale, 1.0);
  max_count_ = static_cast<int64_t>(std::ceil(support)) * 2 + 1;
  places_.reserve(end - begin);
  weights_.resize((end - begin) * max_count_);
  std::vector<double> exact(max_count_);
  for (int64_t i = begin; i < end; ++i) {
    const double centre = (static_cast<double>(i) + 0.5) * scale;
    const int64_t first = std::max<int64_t>(rounded(centre - support), 0);
    const int64_t past = std::min(rounded(centre + support), source_length);
    double sum = 0.0;
    for (int64_t k = first; k < past; ++k) {
      const double distance = std::abs((static_cast<double>(k) - centre + 0.5) * (1.0 / support));
      exact[k - first] = distance < 1.0 ? 1.0 - distance : 0.0;
      sum += exact[k - first];
    }
    int32_t* weights = &weights_[(i - begin) * max_count_];
    for (int64_t k = 0; k < past - first; ++k) {
      const double weight = sum == 0.0 ? exact[k] : exact[k] / sum;
      weights[k] = static_cast<int32_t>(rounded(weight * (1 << kFractionBits)));
    }
    places_.push_back({origin + first, past - first});
  }
}

Region needed_region(const ResizePlan& plan) {
  const Resampling columns = across(plan);
  const Resampling rows = down(plan);
  return {rows.first(), columns.first(), rows.end() - rows.first(),
          columns.end() - columns.first()};
}

void resize_pixels(const Pixels& pixels, const ResizePlan& plan, uint8_t* planes) {
  if (plan.size.height == plan.source.height && plan.size.width == plan.source.width) {
    copy_pixels(pixels, plan, planes);
    return;
  }
  const Resampling columns = across(plan);
  const Resampling rows = down(plan);
  const int64_t width = columns.size();
  const int64_t num_source_rows = rows.end() - rows.first();
  const int64_t plane_size = num_source_rows * width;
  const auto narrow = std::make_unique_for_overwrite<uint8_t[]>(3 * plane_size);
  for (int64_t y = 0; y < num_source_rows; ++y) {
    resize_row(pixels.row(rows.first() + y), columns, pixels.region.left, &narrow[y * width],
               plane_size);
  }
  std::vector<int32_t> sums(width);
  for (int channel = 0; channel < 3; ++channel) {
    for (int64_t y = 0; y < rows.size(); ++y, planes += width) {
      const auto place = rows[y];
      resize_column(&narrow[channel * plane_size + (place.first - rows.first()) * width], width,
                    place, sums.data(), planes);
    }
  }
}

}  // namespace linkboy::vision
