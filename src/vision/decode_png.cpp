// Decodes PNG images to 8-bit RGB with libpng, whose errors arrive by longjmp.

#include <png.h>

#include <algorithm>
#include <csetjmp>
#include <cstring>
#include <vector>

#include "vision/decoder.hpp"

namespace linkboy::vision {
namespace {

/// A reader of a PNG file. Its errors leave libpng by longjmp, back into `guarded`.
struct PngReader {
  explicit PngReader(std::span<const uint8_t> file) : rest(file) {
    png = png_create_read_struct(
        PNG_LIBPNG_VER_STRING, this,
        [](png_structp png, png_const_charp text) {
          auto& self = *static_cast<PngReader*>(png_get_error_ptr(png));
          std::strncpy(self.message, text, sizeof(self.message) - 1);
          std::longjmp(self.jump, 1);
        },
        [](png_structp, png_const_charp) {});  // warnings do not change any pixel
    if (png != nullptr) info = png_create_info_struct(png);
  }
  ~PngReader() { png_destroy_read_struct(&png, &info, nullptr); }
  PngReader(const PngReader&) = delete;
  PngReader& operator=(const PngReader&) = delete;

  static void read(png_structp png, png_bytep target, std::size_t count) {
    auto& self = *static_cast<PngReader*>(png_get_io_ptr(png));
    if (count > self.rest.size()) png_error(png, "the file ends too early");
    std::memcpy(target, self.rest.data(), count);
    self.rest = self.rest.subspan(count);
  }

  std::span<const uint8_t> rest;
  png_structp png = nullptr;
  png_infop info = nullptr;
  std::jmp_buf jump{};
  char message[256] = "";
};

/// Requests 8-bit RGB from libpng for all formats. Only 16-bit grey values stay as they are.
void ask_for_rgb(PngReader& reader, bool is_wide_grey) {
  if (is_wide_grey) return;
  const int type = png_get_color_type(reader.png, reader.info);
  png_set_strip_16(reader.png);
  if (type == PNG_COLOR_TYPE_PALETTE) png_set_palette_to_rgb(reader.png);
  if (type == PNG_COLOR_TYPE_GRAY) png_set_expand_gray_1_2_4_to_8(reader.png);
  if ((type & PNG_COLOR_MASK_COLOR) == 0) png_set_gray_to_rgb(reader.png);
  png_set_strip_alpha(reader.png);
}

}  // namespace

std::string decode_png(std::span<const uint8_t> bytes, PixelAllocator& allocator) {
  PngReader reader(bytes);
  if (reader.info == nullptr) return "libpng could not be initialised";
  int64_t width = 0;
  int64_t height = 0;
  bool is_wide_grey = false;
  if (!guarded(reader, [&] {
        png_set_read_fn(reader.png, &reader, PngReader::read);
        png_read_info(reader.png, reader.info);
        width = png_get_image_width(reader.png, reader.info);
        height = png_get_image_height(reader.png, reader.info);
        is_wide_grey = png_get_color_type(reader.png, reader.info) == PNG_COLOR_TYPE_GRAY &&
                       png_get_bit_depth(reader.png, reader.info) == 16;
      })) {
    return reader.message;
  }

  allocator.choose(width, height);  // checks the size; all rows must be decoded anyway
  uint8_t* const pixels = allocator.allocate({0, 0, height, width});
  std::vector<png_bytep> rows(height);
  std::vector<uint8_t> wide(is_wide_grey ? 2 * width * height : 0);
  for (int64_t y = 0; y < height; ++y) {
    rows[y] = is_wide_grey ? &wide[2 * width * y] : pixels + 3 * width * y;
  }
  if (!guarded(reader, [&] {
        ask_for_rgb(reader, is_wide_grey);
        png_set_interlace_handling(reader.png);
        png_read_update_info(reader.png, reader.info);
        png_read_image(reader.png, rows.data());
        png_read_end(reader.png, nullptr);
      })) {
    return reader.message;
  }
  for (std::size_t i = 0; i < wide.size() / 2; ++i) {
    const uint8_t value = wide[2 * i] == 0 ? wide[2 * i + 1] : 255;
    std::fill_n(pixels + 3 * i, 3, value);
  }
  return {};
}

}  // namespace linkboy::vision
