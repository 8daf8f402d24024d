#include "idx.hpp"

#include <torch/types.h>
#include <zlib.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <memory>
#include <string_view>
#include <utility>
#include <vector>

#include <linkboy/error.hpp>

namespace fashion_mnist {
namespace {

constexpr std::size_t kChunkBytes = 1 << 20;
constexpr std::string_view kRestore = " Restore the file, or name another folder with --data.";

/// A file that zlib decompresses if it is gzipped, and reads unchanged otherwise.
class ByteFile {
 public:
  explicit ByteFile(const std::filesystem::path& path)
      : path_(path), file_(gzopen(path.c_str(), "rb"), gzclose_r) {
    LINKBOY_CHECK(file_ != nullptr, "cannot open ", path_, ": ", std::strerror(errno), ".",
                  kRestore);
  }

  /// Reads up to `count` bytes. Returns the number of bytes, which is smaller at the end of the
  /// file.
  std::size_t read(uint8_t* bytes, std::size_t count) {
    const int got = gzread(file_.get(), bytes, static_cast<unsigned>(count));
    int code = Z_OK;
    const char* reason = gzerror(file_.get(), &code);
    // For a truncated gzip file, zlib returns the available bytes and sets Z_BUF_ERROR.
    LINKBOY_CHECK(code != Z_BUF_ERROR, path_, " is truncated: its gzip data end early.", kRestore);
    LINKBOY_CHECK(got >= 0 && code == Z_OK, path_,
                  " cannot be read: ", code == Z_ERRNO ? std::strerror(errno) : reason, ".",
                  kRestore);
    return static_cast<std::size_t>(got);
  }

 private:
  std::filesystem::path path_;
  std::unique_ptr<gzFile_s, int (*)(gzFile)> file_;
};

std::string hex(uint32_t value) {
  std::array<char, 11> text;
  std::snprintf(text.data(), text.size(), "0x%08x", value);
  return text.data();
}

uint32_t big_endian(const uint8_t* bytes) {
  return uint32_t{bytes[0]} << 24 | uint32_t{bytes[1]} << 16 | uint32_t{bytes[2]} << 8 | bytes[3];
}

/// Reads up to `count` bytes. Allocates memory only as data arrives, so that a damaged header
/// cannot cause a large allocation.
std::vector<uint8_t> read_bytes(ByteFile& file, uint64_t count) {
  std::vector<uint8_t> bytes;
  while (bytes.size() < count) {
    const std::size_t size = bytes.size();
    const auto chunk = static_cast<std::size_t>(std::min<uint64_t>(kChunkBytes, count - size));
    bytes.resize(size + chunk);
    const std::size_t got = file.read(bytes.data() + size, chunk);
    bytes.resize(size + got);
    if (got == 0) break;
  }
  return bytes;
}

at::Tensor to_tensor(std::vector<uint8_t> bytes, const std::vector<int64_t>& sizes) {
  auto owner = std::make_shared<std::vector<uint8_t>>(std::move(bytes));
  return torch::from_blob(
      owner->data(), sizes, [owner](void*) {}, torch::kUInt8);
}

}  // namespace

at::Tensor read_idx(const std::filesystem::path& path, int64_t num_dimensions,
                    const CheckSizes& check_sizes) {
  LINKBOY_CHECK(std::filesystem::is_regular_file(path), path, " is not a file.", kRestore);
  ByteFile file(path);

  // The header has two zero bytes, the type (8 for bytes), the number of dimensions, and the length
  // of each dimension.
  const auto expected_magic = static_cast<uint32_t>(0x0800 + num_dimensions);
  const auto header_size = static_cast<std::size_t>(4 + 4 * num_dimensions);
  const std::vector<uint8_t> header = read_bytes(file, header_size);
  if (header.size() >= 4) {
    LINKBOY_CHECK(big_endian(header.data()) == expected_magic, path, " begins with ",
                  hex(big_endian(header.data())), "; an idx file of ", num_dimensions,
                  "-dimensional bytes begins with ", hex(expected_magic), ".", kRestore);
  }
  LINKBOY_CHECK(header.size() == header_size, path, " is truncated: its header has ", header.size(),
                " of ", header_size, " bytes.", kRestore);

  std::vector<int64_t> sizes;
  uint64_t count = 1;
  int64_t extent = 1;  // counts a size of 0 as 1, as LibTorch does when it computes strides
  for (int64_t i = 0; i < num_dimensions; ++i) {
    const uint32_t size = big_endian(header.data() + 4 + 4 * i);
    LINKBOY_CHECK(!__builtin_mul_overflow(extent, std::max<uint32_t>(size, 1), &extent), path,
                  " has a header with a size that no file can have.", kRestore);
    count *= size;
    sizes.push_back(size);
  }

  if (check_sizes) check_sizes(sizes);
  std::vector<uint8_t> bytes = read_bytes(file, count);
  LINKBOY_CHECK(bytes.size() == count, path, " is truncated: it has ", bytes.size(), " of the ",
                count, " bytes that its header specifies.", kRestore);
  uint8_t extra = 0;
  LINKBOY_CHECK(file.read(&extra, 1) == 0, path, " is longer than the ", count,
                " bytes that its header specifies.", kRestore);
  return to_tensor(std::move(bytes), sizes);
}

std::filesystem::path find_idx(const std::filesystem::path& directory, const std::string& name) {
  LINKBOY_CHECK(std::filesystem::is_directory(directory), "the data folder ", directory,
                " does not exist. Install Debian's package dataset-fashion-mnist, or name a folder "
                "with its four idx files with --data.");
  for (const char* suffix : {"", ".gz"}) {
    std::filesystem::path path = directory / (name + suffix);
    if (std::filesystem::exists(path)) return path;
  }
  throw linkboy::Error(c10::str("the data folder ", directory, " has neither ", name, " nor ", name,
                                ".gz. Put the file there, or name another folder with --data."));
}

Split load_split(const std::filesystem::path& directory, const std::string& prefix,
                 std::optional<int64_t> limit) {
  LINKBOY_CHECK_OPTION(limit.value_or(1) >= 1, "the limit of ", prefix, " samples is ", *limit,
                       "; it must be at least 1.");
  const auto images_path = find_idx(directory, prefix + "-images-idx3-ubyte");
  const auto labels_path = find_idx(directory, prefix + "-labels-idx1-ubyte");
  // Checks the sizes before decompression, because a small file can claim very large images.
  at::Tensor images = read_idx(images_path, 3, [&](const std::vector<int64_t>& sizes) {
    LINKBOY_CHECK(sizes[1] == kImageSize && sizes[2] == kImageSize, images_path,
                  " contains images of shape ", c10::str(c10::IntArrayRef(sizes).slice(1)),
                  "; they must be 28 x 28.", kRestore);
  });
  at::Tensor labels = read_idx(labels_path, 1);

  LINKBOY_CHECK(images.size(0) == labels.size(0), images_path, " has ", images.size(0),
                " images, but ", labels_path, " has ", labels.size(0),
                " labels; there must be one for each image.", kRestore);
  LINKBOY_CHECK(images.size(0) > 0, images_path, " has no images.", kRestore);
  const int64_t count = limit.value_or(images.size(0));
  LINKBOY_CHECK(count <= images.size(0), "the first ", count, " samples are requested, but ",
                images_path, " has ", images.size(0), ". Lower the limit.");
  const at::Tensor is_bad = labels >= kNumClasses;
  if (is_bad.any().item<bool>()) {
    const auto index = is_bad.nonzero()[0].item<int64_t>();
    throw linkboy::Error(c10::str(labels_path, " has the label ", labels[index].item<int64_t>(),
                                  " for image ", index, "; labels must be 0 to ", kNumClasses - 1,
                                  ".", kRestore));
  }

  at::Tensor pixels = images.slice(0, 0, count).unsqueeze(1).to(torch::kFloat);
  pixels.div_(255.0).sub_(kPixelMean).div_(kPixelDeviation);
  return {pixels, labels.slice(0, 0, count).to(torch::kLong)};
}

}  // namespace fashion_mnist
