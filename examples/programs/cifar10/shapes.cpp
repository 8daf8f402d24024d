#include "shapes.hpp"

#include <algorithm>
#include <array>
#include <cerrno>
#include <cmath>
#include <cstring>
#include <fstream>
#include <iterator>
#include <numbers>
#include <random>
#include <system_error>

#include <linkboy/error.hpp>

namespace cifar10 {
namespace {

constexpr int64_t kNumClasses = 10;
constexpr int64_t kNumTrainFiles = 5;
constexpr int kImageSide = 32;

/// Produces the same random numbers with every standard library. The standard's distributions do
/// not guarantee that.
class ShapeRandom {
 public:
  ShapeRandom(uint64_t seed, int64_t file_number) {
    std::seed_seq seeds{static_cast<uint32_t>(seed), static_cast<uint32_t>(seed >> 32),
                        static_cast<uint32_t>(file_number)};
    engine_.seed(seeds);
  }

  double uniform(double low, double high) {
    return low + (high - low) * static_cast<double>(engine_() >> 11) * 0x1p-53;
  }

 private:
  std::mt19937_64 engine_;
};

/// Returns whether the shape of a class covers a point of the square [-1, 1] x [-1, 1].
bool covers(int64_t label, double x, double y) {
  const double u = std::abs(x);
  const double v = std::abs(y);
  const double radius = std::hypot(x, y);
  const double distance = std::max(u, v);
  if (distance > 1.0) return false;
  switch (label) {
    case 0:  // disc
      return radius < 1.0;
    case 1:  // ring
      return radius < 1.0 && radius > 0.6;
    case 2:  // square
      return distance < 0.85;
    case 3:  // frame
      return distance > 0.55;
    case 4:  // plus sign
      return std::min(u, v) < 0.3;
    case 5:  // diagonal cross
      return std::abs(u - v) < 0.35;
    case 6:  // diamond
      return u + v < 1.0;
    case 7:  // three horizontal bars
      return v < 0.2 || v > 0.6;
    case 8:  // three vertical bars
      return u < 0.2 || u > 0.6;
    default:  // triangle
      return u < (y + 1.0) / 2.0;
  }
}

/// Returns red, green and blue, each in [0, 1].
std::array<double, 3> colour_of(double hue) {
  std::array<double, 3> colour;
  for (int channel = 0; channel < 3; ++channel) {
    colour[channel] = 0.5 + 0.5 * std::cos(2.0 * std::numbers::pi * (hue - channel / 3.0));
  }
  return colour;
}

/// Draws an image. Returns its record in the binary format: the label, then the three colour
/// planes.
std::string draw(int64_t label, ShapeRandom& random) {
  const double size = random.uniform(8.0, 13.0);
  const double centre_x = random.uniform(12.0, 20.0);
  const double centre_y = random.uniform(12.0, 20.0);
  const double background = random.uniform(0.2, 0.8);
  const auto colour = colour_of(static_cast<double>(label) / kNumClasses +  //
                                random.uniform(-0.08, 0.08));

  std::string record(1, static_cast<char>(label));
  for (const double shade : colour) {
    for (int row = 0; row < kImageSide; ++row) {
      for (int column = 0; column < kImageSide; ++column) {
        const bool inside =
            covers(label, (column + 0.5 - centre_x) / size, (row + 0.5 - centre_y) / size);
        const double value = (inside ? shade : background) + random.uniform(-0.25, 0.25);
        record += static_cast<char>(std::lround(std::clamp(value, 0.0, 1.0) * 255.0));
      }
    }
  }
  return record;
}

/// Returns the records of the images [begin, end). Image i has the label i modulo 10.
std::string draw_records(int64_t begin, int64_t end, ShapeRandom random) {
  std::string records;
  for (int64_t i = begin; i < end; ++i) records += draw(i % kNumClasses, random);
  return records;
}

bool has_bytes(const std::filesystem::path& path, const std::string& bytes) {
  std::ifstream file(path, std::ios::binary);
  return std::string(std::istreambuf_iterator<char>(file), {}) == bytes;
}

void write_new(const std::filesystem::path& path, const std::string& bytes) {
  if (std::filesystem::exists(path)) {
    LINKBOY_CHECK(has_bytes(path, bytes), path,
                  " exists with other content and is not overwritten. Remove it, or name another "
                  "folder with --directory.");
    return;
  }
  std::ofstream file(path, std::ios::binary);
  file << bytes;
  file.close();
  LINKBOY_CHECK(file.good(), path, " cannot be written: ", std::strerror(errno),
                ". Name another folder with --directory.");
}

}  // namespace

void write_shapes(const std::filesystem::path& directory, const ShapesOptions& options) {
  const int64_t num_train = options.num_train_images;
  LINKBOY_CHECK(num_train >= kNumTrainFiles, num_train, " training images are requested; there ",
                "must be at least ", kNumTrainFiles, ", one for each file.");
  LINKBOY_CHECK(options.num_test_images >= 1, options.num_test_images,
                " test images are requested; there must be at least 1.");
  std::error_code error;
  std::filesystem::create_directories(directory, error);
  LINKBOY_CHECK(!error, "the folder ", directory, " cannot be created: ", error.message(),
                ". Name another one with --directory.");

  for (int64_t number = 1; number <= kNumTrainFiles; ++number) {
    const int64_t begin = num_train * (number - 1) / kNumTrainFiles;
    const int64_t end = num_train * number / kNumTrainFiles;
    write_new(directory / c10::str("data_batch_", number, ".bin"),
              draw_records(begin, end, ShapeRandom(options.seed, number)));
  }
  write_new(directory / "test_batch.bin",
            draw_records(0, options.num_test_images, ShapeRandom(options.seed, 0)));
}

}  // namespace cifar10
