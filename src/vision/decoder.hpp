#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>

#include "linkboy/data/image_transforms.hpp"

namespace linkboy::vision {

/// A rectangle of an image, in pixels.
struct Region {
  int64_t top = 0;
  int64_t left = 0;
  int64_t height = 0;
  int64_t width = 0;
};

/// Decoded pixels of an image: those of `region`, row by row, red, green and blue next to each
/// other.
struct Pixels {
  ImageSize image_size{1};
  Region region;
  std::unique_ptr<uint8_t[]> bytes;

  const uint8_t* row(int64_t y) const { return &bytes[(y - region.top) * region.width * 3]; }
};

/// Which pixels of an image of this size are needed.
using ChooseRegion = std::function<Region(ImageSize)>;

/// Makes the memory that an image's pixels are decoded to, after a look at its size.
/// @throws CorruptFileError if it has more than kMaxPixels pixels.
class PixelAllocator {
 public:
  PixelAllocator(const ChooseRegion& choose, std::string name)
      : choose_(choose), name_(std::move(name)) {}

  /// The region that is needed of an image of this size.
  Region choose(int64_t width, int64_t height);
  /// Makes `pixels` of this region of it.
  uint8_t* allocate(const Region& region);

  Pixels pixels;

 private:
  const ChooseRegion& choose_;
  std::string name_;
};

/// Decodes a JPEG or PNG image; at least the region that `choose` returns is decoded.
/// @param name  That of the file, for messages.
/// @throws CorruptFileError as decode_image.
Pixels decode(std::span<const uint8_t> bytes, const std::string& name, const ChooseRegion& choose);

/// @{ For `decode` only. They return an error message, empty on success; the libraries report
/// errors by longjmp, which must not pass objects with destructors.
std::string decode_jpeg(std::span<const uint8_t> bytes, PixelAllocator& allocator);
std::string decode_png(std::span<const uint8_t> bytes, PixelAllocator& allocator);
/// @}

}  // namespace linkboy::vision
