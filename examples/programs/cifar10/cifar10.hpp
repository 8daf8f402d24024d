#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <filesystem>

namespace cifar10 {

inline constexpr int64_t kNumClasses = 10;
inline constexpr int64_t kNumTrainFiles = 5;

/// Images and their classes, in the order of the files.
struct Images {
  at::Tensor pixels;  // [N, 3, 32, 32], uint8: red, green, blue
  at::Tensor labels;  // [N], int64, 0 to 9
};

/// Reads a file of CIFAR-10's binary version: records of one byte for the label and 3072 for the
/// red, green and blue plane of the image. There may be any number of them.
///
/// @throws linkboy::Error if the file is missing, empty, cannot be read, does not end with a whole
///         record or has a label above 9; the message names the file.
Images read_file(const std::filesystem::path& path);

/// The images of `data_batch_1.bin` to `data_batch_5.bin`, and of `test_batch.bin`.
/// @throws linkboy::Error as `read_file`, and if there is no such folder.
Images read_train_images(const std::filesystem::path& directory);
Images read_test_images(const std::filesystem::path& directory);

/// The names of these files; `number` is 1 to 5.
std::filesystem::path train_path(const std::filesystem::path& directory, int64_t number);
std::filesystem::path test_path(const std::filesystem::path& directory);

}  // namespace cifar10
