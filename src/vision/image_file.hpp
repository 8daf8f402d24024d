#pragma once

#include <cstdint>
#include <filesystem>
#include <vector>

namespace linkboy::vision {

/// Returns the bytes of a file.
/// @throws FileError if it cannot be read.
std::vector<uint8_t> read_file(const std::filesystem::path& path);

/// Returns the images in a folder, in torchvision's order.
/// @throws FileError if the folder or one in it cannot be read, or if a link leads back to a folder
///         above it.
std::vector<std::filesystem::path> list_images(const std::filesystem::path& folder);

}  // namespace linkboy::vision
