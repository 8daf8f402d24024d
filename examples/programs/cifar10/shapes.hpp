#pragma once

#include <cstdint>
#include <filesystem>
#include <string>

namespace cifar10 {

struct ShapesOptions {
  /// At least 5, for there are five files.
  int64_t num_train_images = 2000;
  /// At least 1.
  int64_t num_test_images = 500;
  uint64_t seed = 0;
};

/// Writes a set in the format of CIFAR-10's binary version, with its six files: each class is a
/// shape (disc, ring, square, ...) in a colour of its own, of any place, size and background, under
/// noise. The same options give the same bytes.
///
/// The folder is made if need be. A file that is there already and has other bytes is not
/// overwritten: it could be CIFAR-10's own.
///
/// @throws linkboy::Error if an option is out of its range, a file has other bytes or cannot be
///         written; the message names the file.
void write_shapes(const std::filesystem::path& directory, const ShapesOptions& options);

}  // namespace cifar10
