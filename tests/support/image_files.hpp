#pragma once

#include <ATen/ATen.h>
#include <png.h>

#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include <jpeglib.h>  // needs <cstdio>

namespace linkboy {

/// Returns an image of smooth waves with some noise, uint8 [3, height, width].
inline at::Tensor make_picture(int64_t height, int64_t width, uint64_t seed = 1) {
  at::manual_seed(seed);
  const at::Tensor rows = at::arange(height).view({1, height, 1}) * 0.13;
  const at::Tensor columns = at::arange(width).view({1, 1, width}) * 0.07;
  const at::Tensor phases = at::tensor({0.0, 1.0, 2.0}).view({3, 1, 1});
  const at::Tensor waves = (rows + columns + phases).sin() * 100 + 128;
  return (waves + at::rand({3, height, width}) * 20 - 10).clamp(0, 255).to(at::kByte);
}

struct JpegOptions {
  int quality = 90;
  /// Number of pixels per value of colour, horizontally and vertically.
  int across = 2;
  int down = 2;
  bool is_progressive = false;
};

/// Returns the bytes of a JPEG file of `image`, uint8 [3, H, W].
inline std::string jpeg_bytes(const at::Tensor& image, const JpegOptions& options = {}) {
  const at::Tensor rows = image.permute({1, 2, 0}).contiguous();
  jpeg_compress_struct info{};
  jpeg_error_mgr errors{};
  info.err = jpeg_std_error(&errors);
  jpeg_create_compress(&info);
  unsigned char* bytes = nullptr;
  unsigned long size = 0;  // NOLINT(google-runtime-int): libjpeg's type
  jpeg_mem_dest(&info, &bytes, &size);
  info.image_height = static_cast<JDIMENSION>(rows.size(0));
  info.image_width = static_cast<JDIMENSION>(rows.size(1));
  info.input_components = 3;
  info.in_color_space = JCS_RGB;
  jpeg_set_defaults(&info);
  jpeg_set_quality(&info, options.quality, TRUE);
  if (options.is_progressive) jpeg_simple_progression(&info);
  info.comp_info[0].h_samp_factor = options.across;
  info.comp_info[0].v_samp_factor = options.down;
  jpeg_start_compress(&info, TRUE);
  for (int64_t y = 0; y < rows.size(0); ++y) {
    JSAMPROW row = rows[y].data_ptr<uint8_t>();
    jpeg_write_scanlines(&info, &row, 1);
  }
  jpeg_finish_compress(&info);
  jpeg_destroy_compress(&info);
  std::string result(reinterpret_cast<char*>(bytes), size);
  std::free(bytes);
  return result;
}

/// Returns the bytes of a PNG file of `image`, uint8 [3, H, W].
inline std::string png_bytes(const at::Tensor& image, bool is_interlaced = false) {
  const at::Tensor rows = image.permute({1, 2, 0}).contiguous();
  std::string result;
  png_structp png = png_create_write_struct(PNG_LIBPNG_VER_STRING, nullptr, nullptr, nullptr);
  png_infop info = png_create_info_struct(png);
  png_set_write_fn(
      png, &result,
      [](png_structp writer, png_bytep bytes, std::size_t count) {
        static_cast<std::string*>(png_get_io_ptr(writer))
            ->append(reinterpret_cast<char*>(bytes), count);
      },
      nullptr);
  png_set_IHDR(png, info, static_cast<png_uint_32>(rows.size(1)),
               static_cast<png_uint_32>(rows.size(0)), 8, PNG_COLOR_TYPE_RGB,
               is_interlaced ? PNG_INTERLACE_ADAM7 : PNG_INTERLACE_NONE,
               PNG_COMPRESSION_TYPE_DEFAULT, PNG_FILTER_TYPE_DEFAULT);
  std::vector<png_bytep> pointers;
  for (int64_t y = 0; y < rows.size(0); ++y) pointers.push_back(rows[y].data_ptr<uint8_t>());
  png_set_rows(png, info, pointers.data());
  png_write_png(png, info, PNG_TRANSFORM_IDENTITY, nullptr);
  png_destroy_write_struct(&png, &info);
  return result;
}

}  // namespace linkboy
