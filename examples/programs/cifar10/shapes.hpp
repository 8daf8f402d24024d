#pragma once

#include <cstdint>
#include <filesystem>
#include <string>

namespace cifar10 {

struct ShapesOptions {
  /// Total images in the five training files. Must be at least 5.
  int64_t num_train_images = 2000;
  /// Images in the test file. Must be at least 1.
  int64_t num_test_images = 500;
  uint64_t seed = 0;
};

/// Writes a dataset with the six files of CIFAR-10's binary version. Each class has one shape
/// (disc, ring, square, ...) and a range of hues; position, size, background and noise are random.
/// The same options produce the same bytes.
///
/// Creates the folder if it is missing. Does not overwrite an existing file with other content,
/// because it could be a file of CIFAR-10.
///
/// @throws linkboy::Error if an option is out of range, or if a file has other content or cannot be
///         written; the message names the file.
void write_shapes(const std::filesystem::path& directory, const ShapesOptions& options);

}  // namespace cifar10
