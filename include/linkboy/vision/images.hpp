#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <filesystem>
#include <span>

#include "linkboy/data/image_transforms.hpp"
#include "linkboy/export.hpp"

// Decoding and resizing of single images, with the pixels of Pillow's
// `Image.open(f).convert("RGB")` and `resize`, which torchvision uses for ImageFolder. All
// functions may be called by several threads at the same time and start no threads of their own.

namespace linkboy::vision {

/// An image of more pixels is refused, before memory is allocated for it.
inline constexpr int64_t kMaxPixels = int64_t{1} << 28;

/// Decodes a JPEG or PNG file; its first bytes tell which it is. Returns uint8 [3, H, W]: red,
/// green and blue.
///
/// Other colours become RGB as in Pillow's `convert("RGB")`: grey values are repeated, CMYK and
/// YCCK are converted without a colour profile, palettes are looked up, alpha is dropped. Of 16-bit
/// colours the high byte is kept; 16-bit grey values are cut off at 255. EXIF's orientation is not
/// applied.
///
/// @throws FileError if the file cannot be read.
/// @throws CorruptFileError if it is neither JPEG nor PNG, is damaged or cut short, or has more
///         than kMaxPixels pixels; the message names the file.
LINKBOY_API at::Tensor decode_image(const std::filesystem::path& file);

/// Decodes a file that is in memory.
/// @throws CorruptFileError as above.
LINKBOY_API at::Tensor decode_image(std::span<const uint8_t> bytes);

/// Returns `image` in another size: bilinear with antialiasing, equal in every bit to Pillow's
/// `resize(size, BILINEAR)`, and to torchvision's `Resize` of a Pillow image.
/// @param image  uint8 [3, H, W] on the CPU, of any strides.
/// @throws Error if `image` is not that, or a side of either is not 1 to 2^30 pixels long.
LINKBOY_API at::Tensor resize_image(const at::Tensor& image, ImageSize size);

/// Returns the size that torchvision's `Resize(shorter_side)` gives an image of `size`: the longer
/// side follows in proportion, rounded down.
/// @throws OptionError if `shorter_side` is less than 1.
LINKBOY_API ImageSize size_with_shorter_side(ImageSize size, int64_t shorter_side);

}  // namespace linkboy::vision
