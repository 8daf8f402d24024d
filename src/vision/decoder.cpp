// Detects the format of an image, limits its size, and allocates memory for the needed region.

#include "vision/decoder.hpp"

#include <algorithm>
#include <array>

#include "linkboy/error.hpp"
#include "linkboy/vision/images.hpp"

namespace linkboy::vision {
namespace {

constexpr std::array<uint8_t, 3> kJpegStart{0xFF, 0xD8, 0xFF};
constexpr std::array<uint8_t, 8> kPngStart{0x89, 'P', 'N', 'G', '\r', '\n', 0x1A, '\n'};

template <std::size_t N>
bool starts_with(std::span<const uint8_t> bytes, const std::array<uint8_t, N>& start) {
  return bytes.size() >= N && std::equal(start.begin(), start.end(), bytes.begin());
}

}  // namespace

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
  std::string problem;
  if (starts_with(bytes, kJpegStart)) {
    problem = decode_jpeg(bytes, allocator);
  } else if (starts_with(bytes, kPngStart)) {
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
