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

/// Mean and standard deviation of the training images' pixels, which are scaled to [0, 1].
inline constexpr double kPixelMean = 0.2860;
inline constexpr double kPixelDeviation = 0.3530;

/// Normalised images, ready for the model, and their classes.
struct Split {
  at::Tensor images;  // [N, 1, 28, 28], float: (pixel / 255 - mean) / deviation
  at::Tensor labels;  // [N], int64, 0 to 9
};

/// Called with the sizes in a file's header, before the data is decompressed. It can throw to
/// reject them.
using CheckSizes = std::function<void(const std::vector<int64_t>& sizes)>;

/// Reads an array of bytes from an idx file, gzipped or not.
///
/// @param check_sizes  If it is null, a gzipped file can use up to 1030 times its size in memory.
/// @return A uint8 tensor with `num_dimensions` dimensions.
/// @throws linkboy::Error if the file cannot be read, is not an idx file of bytes with
///         `num_dimensions` dimensions, is damaged, or is shorter or longer than its header says.
///         The message names the file.
at::Tensor read_idx(const std::filesystem::path& path, int64_t num_dimensions,
                    const CheckSizes& check_sizes = nullptr);

/// Returns `directory/name`, or `directory/name.gz` if only the latter exists.
/// @throws linkboy::Error if neither file exists.
std::filesystem::path find_idx(const std::filesystem::path& directory, const std::string& name);

/// Reads `PREFIX-images-idx3-ubyte` and `PREFIX-labels-idx1-ubyte`.
///
/// @param prefix  "train" or "t10k".
/// @param limit  Number of samples to return, starting with the first. If not set, returns all of
///        them. Must be at least 1.
/// @throws linkboy::OptionError if `limit` is less than 1; linkboy::Error in the cases of
///         `find_idx` and `read_idx`, and if the images are not 28 x 28, if there are no images or
///         fewer than `limit`, if images and labels differ in number, or if a label is above 9.
Split load_split(const std::filesystem::path& directory, const std::string& prefix,
                 std::optional<int64_t> limit = std::nullopt);

}  // namespace fashion_mnist
