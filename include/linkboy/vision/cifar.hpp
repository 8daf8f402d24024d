#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <filesystem>

#include "linkboy/export.hpp"

// CIFAR-10 and CIFAR-100 in their binary versions. linkboy does not download them, because that
// would make an HTTP and a TLS library dependencies of training:
//
//     https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz   unpacks to cifar-10-batches-bin/
//     https://www.cs.toronto.edu/~kriz/cifar-100-binary.tar.gz  unpacks to cifar-100-binary/

namespace linkboy::vision {

/// Images and their classes, in the order of the files. TensorDataset accepts both tensors.
struct LabelledImages {
  /// [N, 3, H, W], uint8: the red, green and blue planes of each image.
  at::Tensor images;
  /// [N], int64: the class of each image, counted from 0.
  at::Tensor labels;
};

/// The part of a dataset.
enum class Split {
  /// The training images.
  train,
  /// The test images.
  test
};

/// The kind of label to read. Each CIFAR-100 image has one label of each kind.
enum class Cifar100Labels {
  /// One of 100 classes.
  fine,
  /// One of 20 superclasses of five classes each.
  coarse
};

/// Reads the images of `data_batch_1.bin` to `data_batch_5.bin` (train) or of `test_batch.bin`. A
/// record has one byte for the label (0 to 9) and 3072 bytes for the image, 3 x 32 x 32. A file can
/// have any number of records.
///
/// @param folder  The folder that contains the files, `cifar-10-batches-bin`.
/// @throws FileError if the folder does not exist, or if a file is missing or cannot be read.
/// @throws CorruptFileError if a file is empty, ends with an incomplete record or has a label out
///         of range; the message names the file.
[[nodiscard]] LINKBOY_API LabelledImages read_cifar10(const std::filesystem::path& folder,
                                                      Split split);

/// Reads the images of `train.bin` or `test.bin`. A record has a coarse label (0 to 19), a fine
/// label (0 to 99) and 3072 bytes for the image.
///
/// @param folder  The folder that contains the files, `cifar-100-binary`.
/// @throws The same errors as `read_cifar10`.
[[nodiscard]] LINKBOY_API LabelledImages read_cifar100(
    const std::filesystem::path& folder, Split split, Cifar100Labels labels = Cifar100Labels::fine);

}  // namespace linkboy::vision
