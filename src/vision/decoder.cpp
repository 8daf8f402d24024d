// Detects the format of an image, limits its size, and allocates memory for the needed region.

#include "vision/decoder.hpp"

#include <string_view>

#include "linkboy/error.hpp"
#include "linkboy/vision/images.hpp"

namespace linkboy::vision {

Region PixelAllocator::choose(int64_t width, int64_t height) {
  LINKBOY_CHECK_AS(CorruptFileError, width * height <= kMaxPixels, name_, " has ", width, " x ",
                   height, " pixels according to its header; at most ", kMaxPixels,
                   " are allowed. Use a smaller image.");
  pixels.image_size = {height, width};
  return choose_(pixels.image_size);
}

uint8_t* PixelAllocator::allocate(const Region& region) {
  pixels.region = region;
  pixels.bytes = std::make_unique_for_overwrite<uint8_t[]>(3 * region.height * region.width);
  return pixels.bytes.get();
}

Pixels decode(std::span<const uint8_t> bytes, const std::string& name, const ChooseRegion& choose) {
  PixelAllocator allocator(choose, name);
  const std::string_view start(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  std::string problem;
  if (start.starts_with("\xFF\xD8\xFF")) {
    problem = decode_jpeg(bytes, allocator);
  } else if (start.starts_with("\x89PNG\r\n\x1A\n")) {
    problem = decode_png(bytes, allocator);
  } else {
    throw CorruptFileError(name +
                           (bytes.empty() ? " is empty" : " is neither a JPEG nor a PNG file") +
                           ". Remove it, or convert it to one of them.");
  }
  LINKBOY_CHECK_AS(CorruptFileError, problem.empty(), name, " is damaged: ", problem,
                   ". Restore or remove it.");
  return std::move(allocator.pixels);
}

}  // namespace linkboy::vision
