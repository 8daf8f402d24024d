#include "cifar10.hpp"

#include <torch/types.h>

#include <cerrno>
#include <cstring>
#include <fstream>
#include <linkboy/error.hpp>
#include <string_view>
#include <system_error>
#include <vector>

namespace cifar10 {
namespace {

constexpr int64_t kImageSize = 32;
constexpr int64_t kPixelBytes = 3 * kImageSize * kImageSize;
constexpr int64_t kRecordBytes = 1 + kPixelBytes;
constexpr std::string_view kRestore = " Restore the file, or name another folder with --data.";
constexpr std::string_view kGetData =
    " Unpack https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz or make a small set with "
    "make_cifar10, and name its folder with --data.";

/// Records as they are in the file, uint8 [N, 3073].
at::Tensor read_records(const std::filesystem::path& path) {
  std::error_code error;
  const std::uintmax_t file_size = std::filesystem::file_size(path, error);
  LINKBOY_CHECK(!error, path, " cannot be read: ", error.message(), ".", kRestore);
  const auto size = static_cast<int64_t>(file_size);
  LINKBOY_CHECK(size > 0, path, " is empty.", kRestore);
  LINKBOY_CHECK(size % kRecordBytes == 0, path, " has ", size,
                " bytes; it must be whole records of ", kRecordBytes,
                " bytes, one for the label and 3072 for the pixels.", kRestore);

  at::Tensor records = torch::empty({size / kRecordBytes, kRecordBytes}, torch::kUInt8);
  std::ifstream file(path, std::ios::binary);
  file.read(reinterpret_cast<char*>(records.data_ptr<uint8_t>()), size);
  LINKBOY_CHECK(file.gcount() == size, path, " cannot be read: ", std::strerror(errno), ".",
                kRestore);
  return records;
}

void check_labels(const std::filesystem::path& path, const at::Tensor& labels) {
  const at::Tensor wrong = (labels >= kNumClasses).nonzero();
  if (wrong.size(0) == 0) return;
  const auto index = wrong[0].item<int64_t>();
  throw linkboy::Error(c10::str(path, " has the label ", labels[index].item<int64_t>(),
                                " for image ", index, "; labels must be 0 to ", kNumClasses - 1,
                                ".", kRestore));
}

void check_directory(const std::filesystem::path& directory) {
  LINKBOY_CHECK(std::filesystem::is_directory(directory), "the data folder ", directory,
                " does not exist.", kGetData);
  const auto unpacked = directory / "cifar-10-batches-bin";
  LINKBOY_CHECK(
      std::filesystem::exists(test_path(directory)) || !std::filesystem::is_directory(unpacked),
      "the data folder ", directory, " has no test_batch.bin itself. Name the folder ", unpacked,
      " with --data.");
  LINKBOY_CHECK(!std::filesystem::exists(directory / "batches.meta"), "the data folder ", directory,
                " holds CIFAR-10's version for Python; the binary version is read.", kGetData);
}

}  // namespace

Images read_file(const std::filesystem::path& path) {
  LINKBOY_CHECK(std::filesystem::exists(path), path, " is missing.", kGetData);
  LINKBOY_CHECK(std::filesystem::is_regular_file(path), path, " is not a file.", kRestore);
  const at::Tensor records = read_records(path);
  const at::Tensor labels = records.select(1, 0).to(torch::kLong);
  check_labels(path, labels);
  const at::Tensor pixels = records.narrow(1, 1, kPixelBytes);
  return {pixels.reshape({-1, 3, kImageSize, kImageSize}), labels};
}

Images read_train_images(const std::filesystem::path& directory) {
  check_directory(directory);
  std::vector<at::Tensor> pixels;
  std::vector<at::Tensor> labels;
  for (int64_t number = 1; number <= kNumTrainFiles; ++number) {
    const Images images = read_file(train_path(directory, number));
    pixels.push_back(images.pixels);
    labels.push_back(images.labels);
  }
  return {torch::cat(pixels), torch::cat(labels)};
}

Images read_test_images(const std::filesystem::path& directory) {
  check_directory(directory);
  return read_file(test_path(directory));
}

std::filesystem::path train_path(const std::filesystem::path& directory, int64_t number) {
  return directory / c10::str("data_batch_", number, ".bin");
}

std::filesystem::path test_path(const std::filesystem::path& directory) {
  return directory / "test_batch.bin";
}

}  // namespace cifar10
