#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <vector>

namespace fashion_mnist {

inline constexpr int64_t kImageSize = 28;
inline constexpr int64_t kNumClasses = 10;

/// Statistics of the training images' pixels, between 0 and 1.
inline constexpr double kPixelMean = 0.2860;
inline constexpr double kPixelDeviation = 0.3530;

/// Images as the model takes them, and their classes.
struct Split {
  at::Tensor images;  // [N, 1, 28, 28], float: (pixel / 255 - mean) / deviation
  at::Tensor labels;  // [N], int64, 0 to 9
};

/// Is called with the sizes that a header names, before anything is unpacked; may throw.
using CheckSizes = std::function<void(const std::vector<int64_t>& sizes)>;

/// Reads an array of bytes from an idx file, gzipped or not.
///
/// @param check_sizes  Without it a gzipped file may take 1030 times its size in memory.
/// @return uint8, with the `num_dimensions` dimensions that the file names.
/// @throws linkboy::Error if the file cannot be read, is no such idx file, is damaged, or is
///         shorter or longer than its header says; the message names the file.
at::Tensor read_idx(const std::filesystem::path& path, int64_t num_dimensions,
                    const CheckSizes& check_sizes = nullptr);

/// `directory/name`, or `directory/name.gz` if only that is there.
/// @throws linkboy::Error if neither is.
std::filesystem::path find_idx(const std::filesystem::path& directory, const std::string& name);

/// Reads `PREFIX-images-idx3-ubyte` and `PREFIX-labels-idx1-ubyte`.
///
/// @param prefix  "train" or "t10k".
/// @param limit  Takes the first so many samples; at least 1.
/// @throws linkboy::Error as `find_idx` and `read_idx`, and if the images are not 28 x 28, there
///         are none or fewer than `limit`, images and labels differ in number or a label is above
///         9.
Split load_split(const std::filesystem::path& directory, const std::string& prefix,
                 std::optional<int64_t> limit = std::nullopt);

}  // namespace fashion_mnist
