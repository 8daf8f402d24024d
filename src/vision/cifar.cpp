// Splits CIFAR's files into records of labels and pixels, and checks them.

#include "linkboy/vision/cifar.hpp"

#include <ATen/ATen.h>

#include <array>
#include <string>
#include <string_view>
#include <vector>

#include "linkboy/error.hpp"
#include "vision/image_file.hpp"

namespace linkboy::vision {
namespace {

namespace fs = std::filesystem;

constexpr int64_t kSide = 32;
constexpr int64_t kPixelBytes = 3 * kSide * kSide;
constexpr std::string_view kRestore = " Restore the file, or use another folder.";

/// One of the two formats.
struct Format {
  std::string_view name;
  std::string_view archive;
  /// The folder that unpacking the archive creates.
  std::string_view folder;
  /// A file that only the Python version contains.
  std::string_view python_file;
  /// Number of label bytes before the pixels.
  int64_t num_labels;
  /// Number of classes for each label. Labels count from 0.
  std::array<int64_t, 2> num_classes;
};

constexpr Format kCifar10{"CIFAR-10",
                          "https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz",
                          "cifar-10-batches-bin",
                          "batches.meta",
                          1,
                          {10}};
constexpr Format kCifar100{"CIFAR-100",
                           "https://www.cs.toronto.edu/~kriz/cifar-100-binary.tar.gz",
                           "cifar-100-binary",
                           "meta",
                           2,
                           {20, 100}};

std::string get_data(const Format& format) {
  return c10::str(" Unpack ", format.archive, " and pass its folder, ", format.folder, ".");
}

void check_folder(const Format& format, const fs::path& folder, const fs::path& test_file) {
  LINKBOY_CHECK_AS(FileError, fs::is_directory(folder), "the folder ", folder, " of ", format.name,
                   " does not exist.", get_data(format));
  const fs::path unpacked = folder / format.folder;
  LINKBOY_CHECK_AS(FileError, fs::exists(folder / test_file) || !fs::is_directory(unpacked),
                   "the folder ", folder, " does not contain ", test_file.string(),
                   " itself. Use the folder ", unpacked, ".");
  LINKBOY_CHECK_AS(FileError, !fs::exists(folder / format.python_file), "the folder ", folder,
                   " contains the Python version of ", format.name,
                   "; the binary version is required.", get_data(format));
}

/// Returns the records as they are in the file, uint8 [N, record_bytes].
at::Tensor read_records(const Format& format, const fs::path& path) {
  LINKBOY_CHECK_AS(FileError, fs::exists(path), path, " is missing.", get_data(format));
  const std::vector<uint8_t> bytes = read_file(path);
  const int64_t record_bytes = format.num_labels + kPixelBytes;
  LINKBOY_CHECK_AS(CorruptFileError, !bytes.empty(), path, " is empty.", kRestore);
  LINKBOY_CHECK_AS(CorruptFileError, bytes.size() % record_bytes == 0, path, " has ", bytes.size(),
                   " bytes; it must consist of complete records of ", record_bytes, " bytes, ",
                   format.num_labels, " for labels and ", kPixelBytes, " for the pixels.",
                   kRestore);
  return at::tensor(at::ArrayRef<uint8_t>(bytes)).view({-1, record_bytes});
}

/// Returns the labels in byte `column` of each record.
at::Tensor read_labels(const Format& format, const fs::path& path, const at::Tensor& records,
                       int64_t column) {
  at::Tensor labels = records.select(1, column).to(at::kLong);
  const int64_t num_classes = format.num_classes[column];
  const at::Tensor wrong = labels.ge(num_classes).nonzero();
  if (wrong.size(0) > 0) {
    const auto index = wrong[0].item<int64_t>();
    throw CorruptFileError(c10::str(path, " has the label ", labels[index].item<int64_t>(),
                                    " for image ", index, "; labels must be 0 to ", num_classes - 1,
                                    ".", kRestore));
  }
  return labels;
}

LabelledImages read_files(const Format& format, const fs::path& folder,
                          const std::vector<std::string>& names, int64_t label_column) {
  std::vector<at::Tensor> images;
  std::vector<at::Tensor> labels;
  for (const std::string& name : names) {
    const fs::path path = folder / name;
    const at::Tensor records = read_records(format, path);
    labels.push_back(read_labels(format, path, records, label_column));
    images.push_back(
        records.narrow(1, format.num_labels, kPixelBytes).reshape({-1, 3, kSide, kSide}));
  }
  return {at::cat(images), at::cat(labels)};
}

}  // namespace

LabelledImages read_cifar10(const fs::path& folder, Split split) {
  check_folder(kCifar10, folder, "test_batch.bin");
  std::vector<std::string> names{"test_batch.bin"};
  if (split == Split::train) {
    names.clear();
    for (int number = 1; number <= 5; ++number) {
      names.push_back(c10::str("data_batch_", number, ".bin"));
    }
  }
  return read_files(kCifar10, folder, names, /*label_column=*/0);
}

LabelledImages read_cifar100(const fs::path& folder, Split split, Cifar100Labels labels) {
  check_folder(kCifar100, folder, "test.bin");
  return read_files(kCifar100, folder, {split == Split::train ? "train.bin" : "test.bin"},
                    labels == Cifar100Labels::coarse ? 0 : 1);
}

}  // namespace linkboy::vision
