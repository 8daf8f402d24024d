// Finds classes and files in folders, and reads, crops and resizes the images of a batch.

#include "linkboy/vision/image_folder.hpp"

#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <system_error>

#include "data/image_random.hpp"
#include "linkboy/error.hpp"
#include "linkboy/vision/images.hpp"
#include "vision/decoder.hpp"
#include "vision/image_file.hpp"
#include "vision/resampler.hpp"

namespace linkboy::vision {
namespace {

namespace fs = std::filesystem;

void check_size(const std::string& name, ImageSize size) {
  check_length(name + "'s height", size.height, 1);
  check_length(name + "'s width", size.width, 1);
}

void check_options(const ImageFolderOptions& options) {
  if (options.resize) check_length("ImageFolder: resize", *options.resize, 1);
  if (options.center_crop) check_size("ImageFolder: center_crop", *options.center_crop);
  if (!options.random_resized_crop) return;
  LINKBOY_CHECK_OPTION(!options.resize && !options.center_crop,
                       "ImageFolder: random_resized_crop cannot be combined with resize or "
                       "center_crop, because it determines the size. Leave the others out.");
  const auto& [size, scale, ratio] = *options.random_resized_crop;
  check_size("ImageFolder: random_resized_crop", size);
  LINKBOY_CHECK_OPTION(scale.first > 0.0 && scale.first <= scale.second && scale.second <= 1.0,
                       "ImageFolder: random_resized_crop's scale is ", scale.first, " to ",
                       scale.second,
                       "; both must be above 0 and at most 1, the smaller value first.");
  check_ratio("ImageFolder: random_resized_crop's ratio", ratio);
}

Region random_region(const RandomResizedCrop& crop, ImageSize image, SampleRandom& random) {
  const auto area = static_cast<double>(image.height * image.width);
  constexpr int kMaxTries = 10;
  for (int i = 0; i < kMaxTries; ++i) {
    const double target = area * random.uniform(crop.scale.first, crop.scale.second);
    const double ratio =
        std::exp(random.uniform(std::log(crop.ratio.first), std::log(crop.ratio.second)));
    const auto width = std::llrint(std::sqrt(target * ratio));
    const auto height = std::llrint(std::sqrt(target / ratio));
    if (width < 1 || width > image.width || height < 1 || height > image.height) continue;
    const int64_t top = random.below(image.height - height + 1);
    const int64_t left = random.below(image.width - width + 1);
    return {top, left, height, width};
  }
  const double ratio = static_cast<double>(image.width) / static_cast<double>(image.height);
  Region region{0, 0, image.height, image.width};
  if (ratio < crop.ratio.first) {
    region.height = std::llrint(static_cast<double>(image.width) / crop.ratio.first);
  } else if (ratio > crop.ratio.second) {
    region.width = std::llrint(static_cast<double>(image.height) * crop.ratio.second);
  }
  region.height = std::clamp<int64_t>(region.height, 1, image.height);
  region.width = std::clamp<int64_t>(region.width, 1, image.width);
  region.top = (image.height - region.height) / 2;
  region.left = (image.width - region.width) / 2;
  return region;
}

/// Returns the operations for an image of this size.
/// @param path  For messages.
ResizePlan make_plan(const ImageFolderOptions& options, ImageSize image, const fs::path& path,
                     SampleRandom& random) {
  ResizePlan plan = whole_image(image);
  if (options.random_resized_crop) {
    plan.source = random_region(*options.random_resized_crop, image, random);
    plan.size = options.random_resized_crop->size;
  } else if (options.resize) {
    plan.size = size_with_shorter_side(image, *options.resize);
  }
  plan.part = {0, 0, plan.size.height, plan.size.width};
  if (options.center_crop) {
    const auto [height, width] = *options.center_crop;
    LINKBOY_CHECK(height <= plan.size.height && width <= plan.size.width, path, " has ",
                  plan.size.width, " x ", plan.size.height, " pixels, but center_crop needs ",
                  width, " x ", height, ". Use a larger resize or a smaller center_crop.");
    // Halves are rounded to even numbers, as in Python's round().
    plan.part = {std::llrint(static_cast<double>(plan.size.height - height) / 2.0),
                 std::llrint(static_cast<double>(plan.size.width - width) / 2.0), height, width};
  }
  LINKBOY_CHECK(plan.part.height * plan.part.width <= kMaxPixels, path, " would become ",
                plan.part.width, " x ", plan.part.height, " pixels; at most ", kMaxPixels,
                " are allowed. Remove the file, or set center_crop.");
  return plan;
}

/// Returns the size of all images, if the options determine it.
std::optional<ImageSize> common_size(const ImageFolderOptions& options) {
  if (options.random_resized_crop) return options.random_resized_crop->size;
  return options.center_crop;
}

/// Reads, decodes, crops and resizes an image. If `image` is defined, writes to it; it must then be
/// uint8 [3, H, W] of the common size.
at::Tensor read_image(const ImageFolderOptions& options, const fs::path& path, SampleRandom random,
                      at::Tensor image = {}) {
  ResizePlan plan;
  const Pixels pixels = decode(read_file(path), c10::str(path), [&](ImageSize size) {
    plan = make_plan(options, size, path, random);
    return needed_region(plan);
  });
  if (!image.defined()) image = at::empty({3, plan.part.height, plan.part.width}, at::kByte);
  resize_pixels(pixels, plan, image.data_ptr<uint8_t>());
  return image;
}

std::vector<std::string> list_classes(const fs::path& root) {
  std::error_code error;
  LINKBOY_CHECK_AS(
      FileError, fs::is_directory(root, error), "the folder ", root,
      " of an ImageFolder does not exist. Use the folder that contains the class folders.");
  fs::directory_iterator entries(root, error);
  LINKBOY_CHECK_AS(FileError, !error, "the folder ", root, " cannot be read: ", error.message(),
                   ". Make it readable.");
  std::vector<std::string> classes;
  for (const fs::directory_entry& entry : entries) {
    if (entry.is_directory(error)) classes.push_back(entry.path().filename().string());
  }
  LINKBOY_CHECK_AS(FileError, !classes.empty(), "the folder ", root,
                   " does not contain a folder; an ImageFolder needs one for each class.");
  std::sort(classes.begin(), classes.end());
  return classes;
}

}  // namespace

ImageFolder::ImageFolder(const fs::path& root, const ImageFolderOptions& options)
    : options_(options) {
  check_options(options);
  classes_ = list_classes(root);
  for (const std::string& name : classes_) {
    const auto label = static_cast<int64_t>(class_to_idx_.size());
    class_to_idx_[name] = label;
    const std::vector<fs::path> files = list_images(root / name);
    LINKBOY_CHECK_AS(FileError, !files.empty(), "the class folder ", root / name,
                     " has no .jpg, .jpeg or .png file. Add images, or remove the folder.");
    for (const fs::path& file : files) samples_.push_back({file, label});
  }
}

const ImageFolder::Sample& ImageFolder::sample(int64_t index) const {
  LINKBOY_CHECK(index >= 0 && index < size(), "sample ", index, " of an ImageFolder of ", size(),
                " was requested; it must be 0 to ", size() - 1, ".");
  return samples_[static_cast<std::size_t>(index)];
}

Batch ImageFolder::get_batch(std::span<const int64_t> indices) {
  return get_epoch_batch({/*seed=*/0, /*epoch=*/0, indices});
}

std::vector<Batch> ImageFolder::get_samples(std::span<const int64_t> indices) {
  return get_epoch_samples({/*seed=*/0, /*epoch=*/0, indices});
}

Batch ImageFolder::get_epoch_batch(const TransformContext& context) {
  const auto size = common_size(options_);
  if (!size) return stack_samples(get_epoch_samples(context));
  const uint64_t key = random_key(context, RandomKind::resized_crop);
  const auto count = std::ssize(context.indices);
  at::Tensor images = at::empty({count, 3, size->height, size->width}, at::kByte);
  at::Tensor labels = at::empty({count}, at::kLong);
  for (int64_t i = 0; i < count; ++i) {
    const int64_t index = context.indices[i];
    const Sample& file = sample(index);
    read_image(options_, file.path, {key, index}, images[i]);
    labels.data_ptr<int64_t>()[i] = file.label;
  }
  return Batch(std::move(images), std::move(labels));
}

std::vector<Batch> ImageFolder::get_epoch_samples(const TransformContext& context) {
  const uint64_t key = random_key(context, RandomKind::resized_crop);
  std::vector<Batch> samples;
  for (const int64_t index : context.indices) {
    const Sample& file = sample(index);
    samples.emplace_back(read_image(options_, file.path, {key, index}),
                         at::scalar_tensor(file.label, at::kLong));
  }
  return samples;
}

}  // namespace linkboy::vision
