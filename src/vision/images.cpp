// Decodes and resizes single images as tensors, with decoder.cpp and resampler.cpp.

#include "linkboy/vision/images.hpp"

#include <ATen/ATen.h>

#include "data/image_random.hpp"
#include "linkboy/error.hpp"
#include "vision/decoder.hpp"
#include "vision/image_file.hpp"
#include "vision/resampler.hpp"

namespace linkboy::vision {
namespace {

at::Tensor decode_whole(std::span<const uint8_t> bytes, const std::string& name) {
  const Pixels pixels = decode(bytes, name, [](ImageSize size) {
    return Region{0, 0, size.height, size.width};
  });
  at::Tensor image = at::empty({3, pixels.image_size.height, pixels.image_size.width}, at::kByte);
  resize_pixels(pixels, whole_image(pixels.image_size), image.data_ptr<uint8_t>());
  return image;
}

}  // namespace

at::Tensor decode_image(const std::filesystem::path& file) {
  return decode_whole(read_file(file), c10::str(file));
}

at::Tensor decode_image(std::span<const uint8_t> bytes) { return decode_whole(bytes, "the image"); }

at::Tensor resize_image(const at::Tensor& image, ImageSize size) {
  LINKBOY_CHECK(image.defined() && image.is_cpu() && image.scalar_type() == at::kByte &&
                    image.dim() == 3 && image.size(0) == 3 && image.numel() > 0,
                "resize_image accepts an image of uint8 [3, H, W] on the CPU with at least one "
                "pixel; this is ",
                image.defined()
                    ? c10::str(image.scalar_type(), " ", image.sizes(), " on ", image.device())
                    : "an undefined tensor",
                ".");
  for (const int64_t side : {size.height, size.width, image.size(1), image.size(2)}) {
    LINKBOY_CHECK(side >= 1 && side <= kMaxSide, "resize_image: a side of ", side,
                  " pixels is not allowed; it must have 1 to ", kMaxSide, ".");
  }
  const at::Tensor rows = image.permute({1, 2, 0}).contiguous();
  Pixels pixels;
  pixels.image_size = {image.size(1), image.size(2)};
  pixels.region = {0, 0, image.size(1), image.size(2)};
  pixels.bytes = std::make_unique_for_overwrite<uint8_t[]>(rows.numel());
  std::copy_n(rows.const_data_ptr<uint8_t>(), rows.numel(), pixels.bytes.get());
  ResizePlan plan = whole_image(pixels.image_size);
  plan.size = size;
  plan.part = {0, 0, size.height, size.width};
  at::Tensor resized = at::empty({3, size.height, size.width}, at::kByte);
  resize_pixels(pixels, plan, resized.data_ptr<uint8_t>());
  return resized;
}

ImageSize size_with_shorter_side(ImageSize size, int64_t shorter_side) {
  LINKBOY_CHECK_OPTION(shorter_side >= 1, "the shorter side is ", shorter_side,
                       " pixels; it must be at least 1.");
  const auto in_proportion = [&](int64_t longer, int64_t shorter) {
    return static_cast<int64_t>(static_cast<double>(shorter_side * longer) /
                                static_cast<double>(shorter));
  };
  return size.width <= size.height
             ? ImageSize(in_proportion(size.height, size.width), shorter_side)
             : ImageSize(shorter_side, in_proportion(size.width, size.height));
}

}  // namespace linkboy::vision
