#pragma once

#include <cstdint>
#include <filesystem>
#include <vector>

namespace linkboy::vision {

/// The bytes of a file.
/// @throws FileError if it cannot be read.
std::vector<uint8_t> read_image_file(const std::filesystem::path& path);

/// The images in a folder, in torchvision's order.
/// @throws FileError if it or a folder in it cannot be read, or a link leads back to one above it.
std::vector<std::filesystem::path> list_images(const std::filesystem::path& folder);

}  // namespace linkboy::vision
