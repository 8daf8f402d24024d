// Image transforms as loops over the images of a batch, on the calling thread alone.

#include "linkboy/data/image_transforms.hpp"

#include <ATen/ops/empty.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <utility>

#include "data/image_batch.hpp"
#include "linkboy/error.hpp"

namespace linkboy {
namespace {

/// The function object that `compose` returns.
struct Composed {
  std::vector<Transform> transforms;

  Batch operator()(Batch batch, const TransformContext& context) const {
    bool is_own = false;  // whether a transform of this file has made the images
    for (const Transform& transform : transforms) {
      const auto* const of_images = transform.target<ImageTransform>();
      batch = of_images != nullptr ? of_images->apply(std::move(batch), context, is_own)
                                   : transform(std::move(batch), context);
      is_own = of_images != nullptr;
    }
    return batch;
  }
};

/// Rows [top, bottom) and columns [left, right).
struct Rectangle {
  int64_t top;
  int64_t left;
  int64_t bottom;
  int64_t right;
};

/// Returns one value for each channel, in the units of the images.
std::vector<float> colour_of(const char* what, const std::vector<double>& values,
                             const Images& images) {
  LINKBOY_CHECK(values.size() == 1 || std::ssize(values) == images.channels, what, " has ",
                values.size(), " values, but the images have ", images.channels,
                " channels; set one value, or one for each channel.");
  for (const double value : values) {
    LINKBOY_CHECK(
        !images.is_bytes() || (value >= 0.0 && value <= 255.0 && value == std::floor(value)), what,
        " has ", value,
        ", but the images are still uint8; it must be an integer from 0 to 255. Change "
        "it, or put normalise before this transform.");
  }
  std::vector<float> colour(values.begin(), values.end());
  colour.resize(images.channels, colour.front());
  return colour;
}

at::Tensor crop(const Images& images, ImageSize size, const RandomCropOptions& options) {
  const int64_t num_rows = images.height + 2 * options.padding;
  const int64_t num_columns = images.width + 2 * options.padding;
  LINKBOY_CHECK(num_rows >= size.height && num_columns >= size.width, "random_crop: images of ",
                images.height, " x ", images.width, " with a padding of ", options.padding,
                " are smaller than the crop, ", size.height, " x ", size.width,
                "; they must be at least as large. Increase the padding or reduce the crop.");
  const std::vector<float> fill = colour_of("random_crop: fill", options.fill, images);
  at::Tensor crops =
      at::empty({images.count, images.channels, size.height, size.width}, images.pixels.options());
  images.visit_type([&](auto pixel) {
    using T = decltype(pixel);
    const T* plane = images.pixels.const_data_ptr<T>();
    T* row = crops.mutable_data_ptr<T>();
    for (int64_t i = 0; i < images.count; ++i) {
      SampleRandom random = images.random(i);
      const int64_t top = random.below(num_rows - size.height + 1) - options.padding;
      const int64_t left = random.below(num_columns - size.width + 1) - options.padding;
      // The crop shows the columns [begin, end) of the image, after `margin` columns of padding.
      const int64_t begin = std::clamp<int64_t>(left, 0, images.width);
      const int64_t end = std::clamp<int64_t>(left + size.width, 0, images.width);
      const int64_t margin = std::clamp<int64_t>(-left, 0, size.width);
      for (int64_t c = 0; c < images.channels; ++c, plane += images.height * images.width) {
        const T value = static_cast<T>(fill[c]);
        for (int64_t y = top; y < top + size.height; ++y, row += size.width) {
          T* next = row;
          if (y >= 0 && y < images.height) {
            const T* const source = plane + y * images.width;
            next = std::fill_n(row, margin, value);
            next = std::copy(source + begin, source + end, next);
          }
          std::fill(next, row + size.width, value);
        }
      }
    }
  });
  return crops;
}

at::Tensor flip(const Images& images, double p) {
  at::Tensor flipped = images.own_pixels();
  images.visit_type([&](auto pixel) {
    using T = decltype(pixel);
    T* row = flipped.mutable_data_ptr<T>();
    for (int64_t i = 0; i < images.count; ++i, row += images.image_size()) {
      if (!images.random(i).chance(p)) continue;
      for (int64_t y = 0; y < images.channels * images.height; ++y) {
        std::reverse(row + y * images.width, row + (y + 1) * images.width);
      }
    }
  });
  return flipped;
}

/// Paints the rectangle `choose(random)` of each image, which may extend beyond the image.
/// @param colour  One value for each channel; standard normal noise if it is empty.
at::Tensor paint(const Images& images, const std::vector<float>& colour, const auto& choose) {
  at::Tensor painted = images.own_pixels();
  images.visit_type([&](auto pixel) {
    using T = decltype(pixel);
    T* row = painted.mutable_data_ptr<T>();
    for (int64_t i = 0; i < images.count; ++i) {
      SampleRandom random = images.random(i);
      const Rectangle where = choose(random);
      const int64_t left = std::max<int64_t>(where.left, 0);
      const int64_t right = std::min(where.right, images.width);
      for (int64_t c = 0; c < images.channels; ++c) {
        for (int64_t y = 0; y < images.height; ++y, row += images.width) {
          if (y < where.top || y >= where.bottom) continue;
          if (colour.empty()) {
            std::generate(row + left, row + right, [&] { return static_cast<T>(random.normal()); });
          } else {
            std::fill(row + left, row + right, static_cast<T>(colour[c]));
          }
        }
      }
    }
  });
  return painted;
}

/// Returns an empty rectangle if the image is not to be erased, or if none of ten fits.
Rectangle rectangle_to_erase(const RandomErasingOptions& options, const Images& images,
                             SampleRandom& random) {
  if (!random.chance(options.p)) return {};
  const double area = static_cast<double>(images.height) * static_cast<double>(images.width);
  for (int attempt = 0; attempt < 10; ++attempt) {
    const double erased = area * random.uniform(options.scale.first, options.scale.second);
    const double ratio =
        std::exp(random.uniform(std::log(options.ratio.first), std::log(options.ratio.second)));
    const double height = std::nearbyint(std::sqrt(erased * ratio));
    const double width = std::nearbyint(std::sqrt(erased / ratio));
    // A NaN does not fit either. Ratios near the limits of double can produce one.
    const bool fits =
        height < static_cast<double>(images.height) && width < static_cast<double>(images.width);
    if (!fits) continue;
    const auto rows = static_cast<int64_t>(height);
    const auto columns = static_cast<int64_t>(width);
    const int64_t top = random.below(images.height - rows + 1);
    const int64_t left = random.below(images.width - columns + 1);
    return {top, left, top + rows, left + columns};
  }
  return {};
}

at::Tensor erase(const Images& images, const RandomErasingOptions& options) {
  LINKBOY_CHECK(!options.noise || !images.is_bytes(),
                "random_erasing: noise is set, but the images are still uint8; they must "
                "be float. Put normalise before it.");
  std::vector<float> colour;
  if (!options.noise) colour = colour_of("random_erasing: value", options.value, images);
  return paint(images, colour,
               [&](SampleRandom& random) { return rectangle_to_erase(options, images, random); });
}

at::Tensor cut_out(const Images& images, int64_t size, const std::vector<double>& fill) {
  return paint(images, colour_of("cutout: fill", fill, images), [&](SampleRandom& random) {
    const int64_t top = random.below(images.height) - size / 2;
    const int64_t left = random.below(images.width) - size / 2;
    return Rectangle{top, left, top + size, left + size};
  });
}

at::Tensor normalise_images(const Images& images, const std::vector<double>& mean,
                            const std::vector<double>& std) {
  LINKBOY_CHECK(mean.size() == 1 || std::ssize(mean) == images.channels, "normalise: there are ",
                mean.size(), " means, but the images have ", images.channels,
                " channels; set one mean and std, or one for each channel.");
  at::Tensor normalised = images.is_own && !images.is_bytes()
                              ? images.pixels
                              : at::empty(images.pixels.sizes(), at::kFloat);
  float* const target = normalised.mutable_data_ptr<float>();
  const int64_t plane_size = images.height * images.width;
  for (int64_t c = 0; c < images.channels; ++c) {
    const std::size_t place = mean.size() == 1 ? 0 : c;
    const auto of_float = [m = static_cast<float>(mean[place]), s = static_cast<float>(std[place])](
                              float value) { return (value - m) / s; };
    std::array<float, 256> of_byte;
    for (int byte = 0; byte < 256; ++byte) {
      // volatile: a fused multiply-add would not be bit-identical to torchvision.
      const volatile float scaled = static_cast<float>(byte) * static_cast<float>(1.0 / 255.0);
      of_byte[byte] = of_float(scaled);
    }
    for (int64_t i = 0; i < images.count; ++i) {
      const int64_t begin = (i * images.channels + c) * plane_size;
      if (images.is_bytes()) {
        const uint8_t* const plane = images.pixels.const_data_ptr<uint8_t>() + begin;
        std::transform(plane, plane + plane_size, target + begin,
                       [&](uint8_t byte) { return of_byte[byte]; });
      } else {
        const float* const plane = images.pixels.const_data_ptr<float>() + begin;
        std::transform(plane, plane + plane_size, target + begin, of_float);
      }
    }
  }
  return normalised;
}

void check_not_empty(const char* name, const std::vector<double>& values) {
  LINKBOY_CHECK_OPTION(!values.empty(), name,
                       " has no values; set one, or one for each channel of the images.");
}

}  // namespace

void check_probability(const char* name, double p) {
  LINKBOY_CHECK_OPTION(p >= 0.0 && p <= 1.0, name, ": p is ", p, "; it must be 0 to 1.");
}

Transform compose(std::vector<Transform> transforms) {
  std::vector<Transform> all;
  for (std::size_t i = 0; i < transforms.size(); ++i) {
    LINKBOY_CHECK_OPTION(transforms[i] != nullptr, "compose: transform ", i,
                         " is an empty function; every transform must be callable. Leave it out.");
    if (const auto* nested = transforms[i].target<Composed>()) {
      all.insert(all.end(), nested->transforms.begin(), nested->transforms.end());
    } else {
      all.push_back(std::move(transforms[i]));
    }
  }
  std::map<RandomKind, uint64_t> occurrences;
  for (Transform& transform : all) {
    auto* const of_images = transform.target<ImageTransform>();
    if (of_images != nullptr) of_images->occurrence = occurrences[of_images->kind]++;
  }
  return Composed{std::move(all)};
}

Transform normalise(const std::vector<double>& mean, const std::vector<double>& std) {
  check_not_empty("normalise: mean", mean);
  LINKBOY_CHECK_OPTION(mean.size() == std.size(), "normalise: mean has ", mean.size(),
                       " values and std has ", std.size(),
                       "; they must have the same number of values.");
  for (std::size_t c = 0; c < mean.size(); ++c) {
    LINKBOY_CHECK_OPTION(std::isfinite(static_cast<float>(mean[c])), "normalise: a mean is ",
                         mean[c], "; it must be finite.");
    LINKBOY_CHECK_OPTION(
        static_cast<float>(std[c]) > 0.0F && std::isfinite(static_cast<float>(std[c])),
        "normalise: a std is ", std[c],
        "; it must be above 0 and finite as a float. Set 1 for no scaling.");
  }
  return ImageTransform{RandomKind::none, [=](const Images& images, Batch&) {
                          return normalise_images(images, mean, std);
                        }};
}

Transform random_crop(ImageSize size, const RandomCropOptions& options) {
  check_length("random_crop: height", size.height, 1);
  check_length("random_crop: width", size.width, 1);
  check_length("random_crop: padding", options.padding, 0);
  check_not_empty("random_crop: fill", options.fill);
  return ImageTransform{RandomKind::crop,
                        [=](const Images& images, Batch&) { return crop(images, size, options); }};
}

Transform random_horizontal_flip(double p) {
  check_probability("random_horizontal_flip", p);
  return ImageTransform{RandomKind::flip,
                        [=](const Images& images, Batch&) { return flip(images, p); }};
}

Transform random_erasing(const RandomErasingOptions& options) {
  const auto& scale = options.scale;
  check_probability("random_erasing", options.p);
  LINKBOY_CHECK_OPTION(scale.first >= 0.0 && scale.first <= scale.second && scale.second <= 1.0,
                       "random_erasing: scale is ", scale.first, " to ", scale.second,
                       "; it must lie in 0 to 1, the smaller value first.");
  check_ratio("random_erasing: ratio", options.ratio);
  check_not_empty("random_erasing: value", options.value);
  return ImageTransform{RandomKind::erasing,
                        [=](const Images& images, Batch&) { return erase(images, options); }};
}

Transform cutout(int64_t size, const std::vector<double>& fill) {
  check_length("cutout: size", size, 1);
  check_not_empty("cutout: fill", fill);
  return ImageTransform{RandomKind::cutout,
                        [=](const Images& images, Batch&) { return cut_out(images, size, fill); }};
}

}  // namespace linkboy
