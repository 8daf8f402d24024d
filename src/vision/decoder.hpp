#pragma once

#include <csetjmp>
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

/// Decoded pixels of the `region` of an image, row by row, with interleaved red, green and blue.
struct Pixels {
  ImageSize image_size{1};
  Region region;
  std::unique_ptr<uint8_t[]> bytes;

  const uint8_t* row(int64_t y) const { return &bytes[(y - region.top) * region.width * 3]; }
};

/// Returns the region to decode in an image of this size.
using ChooseRegion = std::function<Region(ImageSize)>;

/// Allocates the memory for the decoded pixels of an image once its size is known.
class PixelAllocator {
 public:
  PixelAllocator(const ChooseRegion& choose, std::string name)
      : choose_(choose), name_(std::move(name)) {}

  /// Returns the region to decode in an image of this size.
  /// @throws CorruptFileError if the image has more than kMaxPixels pixels.
  Region choose(int64_t width, int64_t height);
  /// Allocates `pixels` for this region.
  uint8_t* allocate(const Region& region);

  Pixels pixels;

 private:
  const ChooseRegion& choose_;
  std::string name_;
};

/// Decodes at least the region that `choose` returns of a JPEG or PNG image.
/// @param name  The name of the file, for messages.
/// @throws CorruptFileError in the same cases as `decode_image`.
Pixels decode(std::span<const uint8_t> bytes, const std::string& name, const ChooseRegion& choose);

/// Calls `body`, whose errors jump to `reader.jump`. It must not contain an object with a
/// destructor. Returns whether it completed.
bool guarded(auto& reader, const auto& body) {
  if (setjmp(reader.jump) != 0) return false;
  body();
  return true;
}

/// Used only by `decode`. Return an error message, or an empty string on success. They do not
/// throw, because the libraries report errors by longjmp, which must not skip destructors.
/// @{
std::string decode_jpeg(std::span<const uint8_t> bytes, PixelAllocator& allocator);
std::string decode_png(std::span<const uint8_t> bytes, PixelAllocator& allocator);
/// @}

}  // namespace linkboy::vision
