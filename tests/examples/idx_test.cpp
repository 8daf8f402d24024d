#include "idx.hpp"

#include <gtest/gtest.h>
#include <torch/types.h>
#include <zlib.h>

#include <fstream>
#include <string>
#include <vector>

#include "support/expect_error.hpp"
#include "support/temporary_folder.hpp"

namespace fashion_mnist::idx_test {
namespace {

std::string big_endian(uint32_t value) {
  return {static_cast<char>(value >> 24), static_cast<char>(value >> 16),
          static_cast<char>(value >> 8), static_cast<char>(value)};
}

std::string idx_header(const std::vector<uint32_t>& sizes) {
  std::string bytes = big_endian(0x0800 + static_cast<uint32_t>(sizes.size()));
  for (uint32_t size : sizes) bytes += big_endian(size);
  return bytes;
}

std::string gzip(const std::string& bytes) {
  std::string packed(compressBound(bytes.size()) + 64, '\0');
  z_stream stream{};
  deflateInit2(&stream, 6, Z_DEFLATED, 15 + 16, 8, Z_DEFAULT_STRATEGY);
  stream.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(bytes.data()));
  stream.avail_in = static_cast<uInt>(bytes.size());
  stream.next_out = reinterpret_cast<Bytef*>(packed.data());
  stream.avail_out = static_cast<uInt>(packed.size());
  deflate(&stream, Z_FINISH);
  packed.resize(stream.total_out);
  deflateEnd(&stream);
  return packed;
}

/// Writes a folder with three valid training samples, which the tests can damage.
struct IdxTest : ::testing::Test {
  IdxTest() {
    write(kImages, images);
    write(kLabels, labels);
  }

  void write(const std::string& name, const std::string& bytes) {
    std::ofstream(folder / name, std::ios::binary) << bytes;
  }
  Split load(std::optional<int64_t> limit = std::nullopt) {
    return load_split(folder.path(), "train", limit);
  }

  static constexpr const char* kImages = "train-images-idx3-ubyte";
  static constexpr const char* kLabels = "train-labels-idx1-ubyte";
  const std::string images = idx_header({3, 28, 28}) + std::string(784, '\x00') +
                             std::string(784, '\x80') + std::string(784, '\xff');
  const std::string labels = idx_header({3}) + std::string("\x00\x07\x09", 3);
  linkboy::TemporaryFolder folder;
};

TEST_F(IdxTest, LoadsScaledImagesAndLabels) {
  const Split split = load();
  EXPECT_EQ(split.images.sizes(), (std::vector<int64_t>{3, 1, 28, 28}));
  EXPECT_EQ(split.images.scalar_type(), torch::kFloat);
  EXPECT_FLOAT_EQ(split.images[0][0][0][0].item<float>(), -0.2860F / 0.3530F);
  EXPECT_FLOAT_EQ(split.images[1][0][27][27].item<float>(), (128.0F / 255.0F - 0.2860F) / 0.3530F);
  EXPECT_FLOAT_EQ(split.images[2][0][0][0].item<float>(), (1.0F - 0.2860F) / 0.3530F);
  EXPECT_TRUE(torch::equal(split.labels, torch::tensor({0, 7, 9}, torch::kLong)));
}

TEST_F(IdxTest, LoadsGzippedFiles) {
  const Split plain = load();
  for (const char* name : {kImages, kLabels}) std::filesystem::remove(folder / name);
  write(std::string(kImages) + ".gz", gzip(images));
  write(std::string(kLabels) + ".gz", gzip(labels));
  const Split unpacked = load();
  EXPECT_TRUE(torch::equal(plain.images, unpacked.images));
  EXPECT_TRUE(torch::equal(plain.labels, unpacked.labels));
}

TEST_F(IdxTest, CanLoadOnlyTheFirstSamples) {
  const Split split = load(2);
  EXPECT_EQ(split.images.size(0), 2);
  EXPECT_TRUE(torch::equal(split.labels, torch::tensor({0, 7}, torch::kLong)));
  EXPECT_EQ(load(3).images.size(0), 3);
  EXPECT_ERROR(load(4), "the first 4 samples are requested, but");
}

TEST_F(IdxTest, AMissingFileIsAnErrorThatNamesIt) {
  EXPECT_ERROR(load_split(folder / "none", "train"), "does not exist. Install Debian's package");
  EXPECT_ERROR(load_split(folder.path(), "t10k"), "has neither t10k-images-idx3-ubyte nor");
  std::filesystem::remove(folder / kLabels);
  EXPECT_ERROR(load(), "has neither train-labels-idx1-ubyte nor train-labels-idx1-ubyte.gz");
  std::filesystem::create_directory(folder / kLabels);
  EXPECT_ERROR(load(), "train-labels-idx1-ubyte\" is not a file");
}

TEST_F(IdxTest, RefusesInvalidFiles) {
  const std::string many(2352, 'x');
  struct Case {
    std::string images, labels, message;
  };
  for (const auto& [new_images, new_labels, message] : std::vector<Case>{
           {labels, labels,
            "train-images-idx3-ubyte\" begins with 0x00000801; an idx file of "
            "3-dimensional bytes begins with 0x00000803"},
           {"<html>no such page</html>", labels, "begins with 0x3c68746d"},
           {images.substr(0, images.size() - 1), labels,
            "train-images-idx3-ubyte\" is truncated: it has 2351 of the 2352 bytes"},
           {images.substr(0, 9), labels, "is truncated: its header has 9 of 16 bytes"},
           {"", labels, "is truncated: its header has 0 of 16 bytes"},
           {images, labels + "x",
            "train-labels-idx1-ubyte\" is longer than the 3 bytes that its header"},
           {images, idx_header({2}) + "\1\1", "train-images-idx3-ubyte\" has 3 images, but "},
           {images, idx_header({2}) + "\1\1", "train-labels-idx1-ubyte\" has 2 labels"},
           {idx_header({0, 28, 28}), idx_header({0}), "train-images-idx3-ubyte\" has no images"},
           {idx_header({3, 14, 56}) + many, labels,
            "contains images of shape [14, 56]; they must be 28 x 28"},
           // The reader allocates only memory that the file fills.
           {idx_header({0xffffffff, 28, 28}) + "x", labels,
            "is truncated: it has 1 of the 3367254359280 bytes"},
           {idx_header({0xffffffff, 0xffffffff, 0xffffffff}), labels,
            "a size that no file can have"},
           {images, idx_header({3}) + "\x01\x0a\x02",
            "train-labels-idx1-ubyte\" has the label 10 for image 1; labels must be 0 to 9"}}) {
    write(kImages, new_images);
    write(kLabels, new_labels);
    EXPECT_ERROR(load(), message);
  }
}

TEST_F(IdxTest, RefusesADamagedGzip) {
  // Bytes that do not compress well, so that truncation or a flipped bit affects the data.
  std::string noise = idx_header({3, 28, 28});
  for (uint32_t i = 0, x = 1; i < 2352; ++i, x = x * 1664525 + 1013904223) {
    noise += static_cast<char>(x >> 24);
  }
  const std::string packed = gzip(noise);
  std::string flipped = packed;
  flipped[flipped.size() / 2] ^= 0x10;
  std::filesystem::remove(folder / kImages);
  for (const auto& [bytes, message] : std::vector<std::pair<std::string, std::string>>{
           {packed.substr(0, packed.size() / 2), "is truncated: its gzip data end early"},
           {packed.substr(0, packed.size() - 2), "is truncated: its gzip data end early"},
           {flipped, "cannot be read: "}}) {
    write(std::string(kImages) + ".gz", bytes);
    EXPECT_ERROR(load(), "train-images-idx3-ubyte.gz\" " + message);
  }
}

// The header of a small file can claim images of any size, and compressed data can expand to that
// size.
TEST_F(IdxTest, RefusesAnotherImageSizeBeforeItUnpacksTheImages) {
  write(std::string(kImages) + ".gz", gzip(idx_header({3, 1000, 1000})));
  std::filesystem::remove(folder / kImages);
  EXPECT_ERROR(load_split(folder.path(), "train"), "they must be 28 x 28");
}

}  // namespace
}  // namespace fashion_mnist::idx_test
