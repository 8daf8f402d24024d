#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <filesystem>
#include <span>

#include "linkboy/data/image_transforms.hpp"
#include "linkboy/export.hpp"

// Decoding and resizing of single images. The pixels equal those of Pillow's
// `Image.open(f).convert("RGB")` and `resize`, which torchvision uses for ImageFolder. All
// functions are thread-safe and do not start threads.

namespace linkboy::vision {

/// The largest accepted number of pixels in an image. A larger image is rejected before memory is
/// allocated for it.
inline constexpr int64_t kMaxPixels = int64_t{1} << 28;

/// Decodes a JPEG or PNG file. Detects the format from the first bytes. Returns uint8 [3, H, W]:
/// red, green and blue.
///
/// Other colours are converted to RGB as in Pillow's `convert("RGB")`: grey values are repeated,
/// CMYK and YCCK are converted without a colour profile, palettes are resolved, and alpha is
/// dropped. For 16-bit colours, the high byte is kept; 16-bit grey values are limited to 255. EXIF
/// orientation is not applied.
///
/// @throws FileError if the file cannot be read.
/// @throws CorruptFileError if it is neither JPEG nor PNG, is damaged or truncated, or has more
///         than kMaxPixels pixels; the message names the file.
[[nodiscard]] LINKBOY_API at::Tensor decode_image(const std::filesystem::path& file);

/// Decodes a file that is in memory.
/// @throws CorruptFileError in the same cases as the other overload.
[[nodiscard]] LINKBOY_API at::Tensor decode_image(std::span<const uint8_t> bytes);

/// Returns `image` resized to `size`: bilinear with antialiasing, bit-identical to Pillow's
/// `resize(size, BILINEAR)` and to torchvision's `Resize` of a Pillow image.
/// @param image  uint8 [3, H, W] on the CPU, with any strides.
/// @throws Error if `image` does not have this form, or if a side of the image or of `size` is not
///         1 to 2^30 pixels long.
[[nodiscard]] LINKBOY_API at::Tensor resize_image(const at::Tensor& image, ImageSize size);

/// Returns the size that torchvision's `Resize(shorter_side)` produces for an image of `size`: the
/// longer side is scaled in proportion and rounded down.
/// @throws OptionError if `shorter_side` is less than 1.
LINKBOY_API ImageSize size_with_shorter_side(ImageSize size, int64_t shorter_side);

}  // namespace linkboy::vision
