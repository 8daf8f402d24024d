#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "linkboy/data/data_loader.hpp"
#include "linkboy/data/dataset.hpp"
#include "linkboy/data/image_transforms.hpp"
#include "linkboy/export.hpp"

namespace linkboy::vision {

/// torchvision's RandomResizedCrop: cuts a random rectangle out of the image and resizes it to
/// `size`. A rectangle that does not fit is drawn again, up to ten times; then the largest one in
/// the middle is taken whose ratio is allowed.
struct RandomResizedCrop {
  /// Size of the result in pixels.
  ImageSize size;
  /// Area of the rectangle over that of the image, uniform between these two (above 0, to 1).
  std::pair<double, double> scale = {0.08, 1.0};
  /// Its width over its height, between these two (above 0), with a uniform logarithm.
  std::pair<double, double> ratio = {3.0 / 4.0, 4.0 / 3.0};
};

/// What ImageFolder does with each image, in this order. For batches all images must come out in
/// one size: give `center_crop` or `random_resized_crop`, or a `collate_fn` to the loader.
struct ImageFolderOptions {
  /// Resizes the image so that its shorter side has so many pixels, as torchvision's Resize; see
  /// `resize_image` for the numbers. At least 1. Default: the size stays.
  std::optional<int64_t> resize{};
  /// Cuts this size out of the middle. Default: nothing is cut off.
  std::optional<ImageSize> center_crop{};
  /// Used in training; excludes the other two. Default: none.
  std::optional<RandomResizedCrop> random_resized_crop{};
};

/// Images in files, a folder for each class:
///
///     auto train = std::make_shared<ImageFolder>("train", ImageFolderOptions{
///         .random_resized_crop = RandomResizedCrop{.size = 224}});
///
/// Sample i is `input`, uint8 [3, H, W], and `target`, the number of the class. Classes are the
/// folders in the root, sorted by the bytes of their names; their files are found as torchvision's
/// ImageFolder finds them: in sub-folders too, through links, sorted, with the suffix .jpg, .jpeg
/// or .png in upper or lower case. Files with other suffixes are left out.
///
/// A file is read and decoded when a batch is made, by the thread that makes it: give the loader
/// workers. See `decode_image` for the formats. Random crops depend on (seed, epoch, index) alone.
class LINKBOY_API ImageFolder final : public DatasetSource {
 public:
  /// Lists the files; does not open them.
  /// @throws OptionError if an option is out of its range, or `random_resized_crop` is given
  ///         together with another.
  /// @throws FileError if the root is not a folder, has no folder in it, a class has no images, a
  ///         folder cannot be read, or a link leads back to a folder above it.
  explicit ImageFolder(const std::filesystem::path& root, const ImageFolderOptions& options = {});

  int64_t size() const override { return static_cast<int64_t>(samples_.size()); }

  /// Batches and samples as in epoch 0 of a loader with the seed 0. A loader calls the other two.
  /// @throws FileError, CorruptFileError as decode_image; the message names the file.
  /// @throws Error if an image is smaller than `center_crop`, the images of a batch differ in size,
  ///         or there is no such sample.
  /// @{
  Batch get_batch(std::span<const int64_t> indices) override;
  std::vector<Batch> get_samples(std::span<const int64_t> indices) override;
  Batch get_epoch_batch(const TransformContext& context) override;
  std::vector<Batch> get_epoch_samples(const TransformContext& context) override;
  /// @}

  /// Names of the classes; class k is the k-th of them.
  const std::vector<std::string>& classes() const { return classes_; }
  /// The number of each class.
  const std::map<std::string, int64_t>& class_to_idx() const { return class_to_idx_; }

  /// One file.
  struct Sample {
    /// Begins with the root as it was given.
    std::filesystem::path path;
    /// The number of its class.
    int64_t label;
  };
  /// All files, in the order of the samples.
  const std::vector<Sample>& samples() const { return samples_; }

 private:
  const Sample& sample(int64_t index) const;

  ImageFolderOptions options_;
  std::vector<std::string> classes_;
  std::map<std::string, int64_t> class_to_idx_;
  std::vector<Sample> samples_;
};

}  // namespace linkboy::vision
