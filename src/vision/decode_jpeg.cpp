// Decodes the needed region of a JPEG image with libjpeg, whose errors arrive by longjmp.

#include <algorithm>
#include <csetjmp>
#include <cstddef>
#include <cstdio>
#include <vector>

#include <jpeglib.h>  // needs <cstdio>

#include <jerror.h>  // needs jpeglib.h: its messages depend on the version

#include "vision/decoder.hpp"

#ifndef LIBJPEG_TURBO_VERSION
#error "linkboy::vision needs libjpeg-turbo; this is another libjpeg. Install libjpeg62-turbo-dev."
#endif

namespace linkboy::vision {
namespace {

/// A decompressor. Its errors leave libjpeg by longjmp, back into `guarded`.
struct JpegReader {
  JpegReader() {
    info.err = jpeg_std_error(&errors);
    info.client_data = this;
    errors.error_exit = [](j_common_ptr common) {
      auto& self = *static_cast<JpegReader*>(common->client_data);
      (*common->err->format_message)(common, self.message);
      std::longjmp(self.jump, 1);
    };
    errors.emit_message = [](j_common_ptr common, int level) {
      if (level < 0 && is_damage(common->err->msg_code)) (*common->err->error_exit)(common);
    };
  }
  ~JpegReader() { jpeg_destroy_decompress(&info); }
  JpegReader(const JpegReader&) = delete;
  JpegReader& operator=(const JpegReader&) = delete;

  /// Whether a warning means that the file is damaged. libjpeg continues with invented pixels after
  /// these. Its other warnings do not change any pixel.
  static bool is_damage(int code) {
    return code == JWRN_JPEG_EOF || code == JWRN_HIT_MARKER || code == JWRN_HUFF_BAD_CODE ||
           code == JWRN_MUST_RESYNC || code == JWRN_BOGUS_PROGRESSION ||
           code == JWRN_NOT_SEQUENTIAL;
  }

  jpeg_decompress_struct info{};
  jpeg_error_mgr errors{};
  std::jmp_buf jump{};
  char message[JMSG_LENGTH_MAX] = "";
};

/// Converts cyan, magenta, yellow and black to RGB as Pillow does. The file contains inverted
/// values.
void convert_cmyk(const uint8_t* cmyk, int64_t count, uint8_t* rgb) {
  for (int64_t i = 0; i < count; ++i, cmyk += 4) {
    const int light = cmyk[3];
    for (int channel = 0; channel < 3; ++channel) {
      const int product = (255 - cmyk[channel]) * light + 128;
      *rgb++ = static_cast<uint8_t>(light - (((product >> 8) + product) >> 8));
    }
  }
}

}  // namespace

std::string decode_jpeg(std::span<const uint8_t> bytes, PixelAllocator& allocator) {
  JpegReader reader;
  auto& info = reader.info;
  if (!guarded(reader, [&] {
        jpeg_create_decompress(&info);
        jpeg_mem_src(&info, bytes.data(), bytes.size());
        jpeg_read_header(&info, TRUE);
      })) {
    return reader.message;
  }

  const int64_t width = info.image_width;
  const Region needed = allocator.choose(width, info.image_height);
  // The neighbours of a pixel contribute to its colour, and columns begin and end with whole
  // blocks.
  constexpr int64_t kMargin = 32;
  JDIMENSION left = std::max<int64_t>(needed.left - kMargin, 0);
  JDIMENSION num_columns =
      std::min<int64_t>(needed.left + needed.width + kMargin, width) - int64_t{left};
  const bool is_cmyk = info.jpeg_color_space == JCS_CMYK || info.jpeg_color_space == JCS_YCCK;
  info.out_color_space = is_cmyk ? JCS_CMYK : JCS_RGB;
  if (!guarded(reader, [&] {
        jpeg_start_decompress(&info);
        if (num_columns < info.output_width) jpeg_crop_scanline(&info, &left, &num_columns);
      })) {
    return reader.message;
  }

  const auto row_size = static_cast<std::ptrdiff_t>(num_columns) * 3;
  uint8_t* const rows =
      allocator.allocate({needed.top, int64_t{left}, needed.height, int64_t{num_columns}});
  std::vector<uint8_t> cmyk(is_cmyk ? std::size_t{num_columns} * 4 : 0);
  std::vector<uint8_t> last_row(std::size_t{num_columns} * 4);
  if (!guarded(reader, [&] {
        if (needed.top > 0) jpeg_skip_scanlines(&info, static_cast<JDIMENSION>(needed.top));
        for (int64_t y = 0; y < needed.height; ++y) {
          uint8_t* const row = rows + y * row_size;
          JSAMPROW target = is_cmyk ? cmyk.data() : row;
          jpeg_read_scanlines(&info, &target, 1);
          if (is_cmyk) convert_cmyk(target, num_columns, row);
        }
        // Also reads the last row, so that damage is an error whichever region is needed. Skipping
        // to the end would not check the skipped rows.
        if (info.output_scanline < info.output_height) {
          jpeg_skip_scanlines(&info, info.output_height - info.output_scanline - 1);
          JSAMPROW target = last_row.data();
          jpeg_read_scanlines(&info, &target, 1);
        }
        jpeg_finish_decompress(&info);
      })) {
    return reader.message;
  }
  return {};
}

}  // namespace linkboy::vision
