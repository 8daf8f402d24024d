#include "linkboy/vision/images.hpp"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <random>

#include "support/expect_error.hpp"
#include "support/file_contents.hpp"
#include "support/image_files.hpp"
#include "support/temporary_folder.hpp"
#include "vision/decoder.hpp"

namespace linkboy::vision::images_test {
namespace {

std::span<const uint8_t> span_of(const std::string& bytes) {
  return {reinterpret_cast<const uint8_t*>(bytes.data()), bytes.size()};
}

at::Tensor decode_bytes(const std::string& bytes) { return decode_image(span_of(bytes)); }

/// Returns the bytes of this picture as files of each kind.
std::vector<std::string> files_of(const at::Tensor& picture) {
  return {jpeg_bytes(picture), jpeg_bytes(picture, {.is_progressive = true}), png_bytes(picture),
          png_bytes(picture, /*is_interlaced=*/true)};
}

TEST(DecodeImageTest, DecodesAPngExactly) {
  const at::Tensor picture = make_picture(31, 46);
  EXPECT_TRUE(torch::equal(decode_bytes(png_bytes(picture)), picture));
  EXPECT_TRUE(torch::equal(decode_bytes(png_bytes(picture, /*is_interlaced=*/true)), picture));
}

TEST(DecodeImageTest, DecodesAJpegApproximately) {
  const at::Tensor picture = make_picture(31, 46);
  const at::Tensor image =
      decode_bytes(jpeg_bytes(picture, {.quality = 98, .across = 1, .down = 1}));
  EXPECT_EQ(image.scalar_type(), torch::kByte);
  EXPECT_TRUE(image.is_contiguous());
  EXPECT_EQ(image.sizes(), picture.sizes());
  EXPECT_LT((image.to(torch::kInt) - picture.to(torch::kInt)).abs().max().item<int64_t>(), 12);
}

TEST(DecodeImageTest, AFileAndItsBytesGiveTheSamePixels) {
  const TemporaryFolder folder;
  const std::string bytes = jpeg_bytes(make_picture(20, 30));
  write_bytes(folder / "ä b.bin", bytes);
  EXPECT_TRUE(torch::equal(decode_image(folder / "ä b.bin"), decode_bytes(bytes)));
}

// A decoder that skips rows and columns must not change the others.
TEST(DecodeImageTest, ARegionHasThePixelsOfTheWholeImage) {
  std::mt19937 random(5);
  const auto below = [&](int64_t count) { return static_cast<int64_t>(random() % count); };
  for (const auto& [across, down, is_progressive] : {std::tuple{1, 1, false},
                                                     {2, 1, false},
                                                     {1, 2, false},
                                                     {2, 2, false},
                                                     {4, 1, false},
                                                     {2, 2, true}}) {
    const JpegOptions options{.across = across, .down = down, .is_progressive = is_progressive};
    for (const auto& [height, width] : {std::pair<int64_t, int64_t>{375, 500}, {131, 263}}) {
      const std::string bytes = jpeg_bytes(make_picture(height, width), options);
      const at::Tensor whole = decode_bytes(bytes);
      for (int i = 0; i < 40; ++i) {
        Region region{below(height), below(width), 0, 0};
        region.height = 1 + below(height - region.top);
        region.width = 1 + below(width - region.left);
        const Pixels pixels = decode(span_of(bytes), "it", [&](ImageSize) { return region; });
        at::Tensor found = torch::empty({region.height, region.width, 3}, torch::kByte);
        for (int64_t y = 0; y < region.height; ++y) {
          std::copy_n(pixels.row(region.top + y) + 3 * (region.left - pixels.region.left),
                      3 * region.width, found[y].data_ptr<uint8_t>());
        }
        const at::Tensor expected = whole.narrow(1, region.top, region.height)
                                        .narrow(2, region.left, region.width)
                                        .permute({1, 2, 0});
        ASSERT_TRUE(torch::equal(found, expected))
            << c10::str(across, " x ", down, is_progressive ? " progressive" : "", ", rows ",
                        region.top, " + ", region.height, ", columns ", region.left, " + ",
                        region.width, " of ", height, " x ", width);
      }
    }
  }
}

TEST(DecodeImageTest, RefusesDataThatIsNotAnImage) {
  EXPECT_ERROR_AS(CorruptFileError, decode_bytes(""), "the image is empty. Remove it");
  EXPECT_ERROR_AS(CorruptFileError, decode_bytes("GIF89a........"),
                  "is neither a JPEG nor a PNG file. Remove it");
}

TEST(DecodeImageTest, RefusesAFileTruncatedAnywhere) {
  for (const std::string& bytes : files_of(make_picture(40, 50))) {
    for (std::size_t size = 8; size + 2 < bytes.size(); size += 1 + bytes.size() / 97) {
      EXPECT_THROW(decode_bytes(bytes.substr(0, size)), CorruptFileError) << size;
    }
  }
}

TEST(DecodeImageTest, RefusesAFileTruncatedAfterTheRegion) {
  const std::string bytes = jpeg_bytes(make_picture(200, 200));
  const auto corner = [](ImageSize) { return Region{0, 0, 8, 8}; };
  EXPECT_THROW(decode(span_of(bytes).first(bytes.size() - 200), "it", corner), CorruptFileError);
}

TEST(DecodeImageTest, RefusesDamage) {
  const TemporaryFolder folder;
  std::string png = png_bytes(make_picture(40, 50));
  png[png.size() / 2] ^= 1;
  write_bytes(folder / "x.png", png);
  EXPECT_ERROR_AS(CorruptFileError, decode_image(folder / "x.png"), "x.png\" is damaged: ");
  std::string jpeg = jpeg_bytes(make_picture(40, 50));
  jpeg.replace(jpeg.size() / 2, 2, "\xFF\xD9");  // the end of the image
  EXPECT_THROW(decode_bytes(jpeg), CorruptFileError);
}

// No input may crash the decoder. In the debug build, the sanitizers also check this.
TEST(DecodeImageTest, DamagedBytesNeverCrash) {
  std::mt19937 random(7);
  for (const std::string& whole : files_of(make_picture(24, 33))) {
    int num_refused = 0;
    for (int i = 0; i < 300; ++i) {
      std::string bytes = whole;
      for (int k = 0; k < 3; ++k) bytes[8 + random() % (bytes.size() - 8)] = random();
      try {
        decode_bytes(bytes);
      } catch (const CorruptFileError&) {
        ++num_refused;
      }
    }
    EXPECT_GT(num_refused, 0);
  }
}

TEST(DecodeImageTest, RefusesImagesWithTooManyPixels) {
  std::string png = png_bytes(make_picture(4, 4));
  png.replace(16, 8, std::string("\0\1\0\0\0\1\0\0", 8));  // 65536 x 65536; then the header's CRC
  png.replace(29, 4, std::string("\xE3\xE6\xA7\xB4", 4));
  EXPECT_ERROR(decode_bytes(png),
               "has 65536 x 65536 pixels according to its header; at most 268435456");
  std::string jpeg = jpeg_bytes(make_picture(16, 16));
  const auto frame = jpeg.find("\xFF\xC0");
  ASSERT_NE(frame, std::string::npos);
  jpeg.replace(frame + 5, 4, std::string("\xFF\x00\xFF\x00", 4));
  EXPECT_ERROR(decode_bytes(jpeg),
               "has 65280 x 65280 pixels according to its header; at most 268435456");
}

TEST(DecodeImageTest, RefusesAnUnreadableFile) {
  const TemporaryFolder folder;
  EXPECT_ERROR_AS(FileError, decode_image(folder / "none.png"), "none.png\" is missing. Restore");
  EXPECT_ERROR(decode_image(folder.path()), " is not a file. Remove it");
}

TEST(ResizeImageTest, AcceptsAnyStridesAndKeepsTheSize) {
  const at::Tensor picture = make_picture(23, 37);
  EXPECT_TRUE(torch::equal(resize_image(picture, {23, 37}), picture));
  const at::Tensor strided = picture.permute({1, 2, 0}).contiguous().permute({2, 0, 1});
  EXPECT_TRUE(torch::equal(resize_image(strided, {10, 50}), resize_image(picture, {10, 50})));
}

TEST(ResizeImageTest, IsCloseToTorchsAntialiasedInterpolation) {
  const at::Tensor picture = make_picture(90, 70);
  const at::Tensor expected = at::_upsample_bilinear2d_aa(picture.unsqueeze(0).to(torch::kFloat),
                                                          {33, 41}, /*align_corners=*/false);
  const at::Tensor difference = resize_image(picture, {33, 41}).to(torch::kFloat) - expected[0];
  EXPECT_LE(difference.abs().max().item<double>(), 1.01);
}

TEST(ResizeImageTest, RefusesTensorsThatAreNotByteImages) {
  const at::Tensor picture = make_picture(4, 5);
  EXPECT_ERROR(resize_image(picture.to(torch::kFloat), 3), "this is Float [3, 4, 5] on cpu");
  EXPECT_ERROR(resize_image(picture[0], 3), "accepts an image of uint8 [3, H, W]");
  EXPECT_ERROR(resize_image(at::Tensor(), 3), "an undefined tensor");
  EXPECT_ERROR(resize_image(picture, {0, 3}), "a side of 0 pixels");
}

TEST(ResizeImageTest, TheLongerSideKeepsTheProportion) {
  const auto check = [](ImageSize size, int64_t side, ImageSize expected) {
    const ImageSize found = size_with_shorter_side(size, side);
    EXPECT_EQ(found.height, expected.height);
    EXPECT_EQ(found.width, expected.width);
  };
  check({375, 500}, 256, {256, 341});
  check({500, 375}, 256, {341, 256});
  check({7, 7}, 3, {3, 3});
  EXPECT_ERROR(size_with_shorter_side({3, 4}, 0), "the shorter side is 0 pixels; it must be");
}

}  // namespace
}  // namespace linkboy::vision::images_test
