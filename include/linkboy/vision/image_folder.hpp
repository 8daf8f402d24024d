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
/// `size`. If a rectangle does not fit, another one is drawn, up to ten in total. If none fits,
/// uses the largest centred rectangle that has an allowed ratio.
struct RandomResizedCrop {
  /// Size of the result in pixels.
  ImageSize size;
  /// Range of the rectangle's area as a fraction of the image's area; the distribution is uniform.
  /// Both values must be in (0, 1], the smaller one first.
  std::pair<double, double> scale = {0.08, 1.0};
  /// Range of the rectangle's aspect ratio, width / height; its logarithm is uniformly distributed.
  /// Both values must be positive and finite, the smaller one first.
  std::pair<double, double> ratio = {3.0 / 4.0, 4.0 / 3.0};
};

/// The operations that ImageFolder applies to each image, in this order. The images of a batch must
/// have the same size: set `center_crop` or `random_resized_crop`, or pass a `collate_fn` to the
/// loader.
struct ImageFolderOptions {
  /// Length of the shorter side after resizing, in pixels, as in torchvision's Resize;
  /// `resize_image` describes the interpolation. Must be 1 to 2^30. If not set, the size does not
  /// change.
  std::optional<int64_t> resize{};
  /// Size of the crop at the centre, in pixels. If not set, the image is not cropped.
  std::optional<ImageSize> center_crop{};
  /// A random crop for training. Cannot be combined with the other two options.
  std::optional<RandomResizedCrop> random_resized_crop{};
};

/// Images in files, with one folder per class:
///
///     auto train = std::make_shared<ImageFolder>("train", ImageFolderOptions{
///         .random_resized_crop = RandomResizedCrop{.size = 224}});
///
/// Sample i has `input`, uint8 [3, H, W], and `target`, the number of the class. The classes are
/// the folders in the root, sorted by the bytes of their names. Their files are found as in
/// torchvision's ImageFolder: also in subfolders and through links, sorted, with the suffix .jpg,
/// .jpeg or .png in upper or lower case. Files with other suffixes are ignored.
///
/// The thread that prepares a batch reads and decodes its files, so use a loader with workers.
/// `decode_image` lists the formats. Random crops depend only on (seed, epoch, index).
class LINKBOY_API ImageFolder final : public DatasetSource {
 public:
  /// Lists the files; does not open them.
  /// @throws OptionError if an option is out of range, or if `random_resized_crop` is combined with
  ///         another option.
  /// @throws FileError if the root is not a folder or does not contain a folder, if a class does
  ///         not have images, if a folder cannot be read, or if a link leads back to a folder above
  ///         it.
  explicit ImageFolder(const std::filesystem::path& root, const ImageFolderOptions& options = {});

  int64_t size() const override { return static_cast<int64_t>(samples_.size()); }

  /// Return a batch or samples. Loaders call the functions with a `context`, which determines the
  /// random crops. The others return the crops of epoch 0 with seed 0.
  /// @throws FileError, CorruptFileError as in `decode_image`; the message names the file.
  /// @throws Error if an image is smaller than `center_crop`, if the result would have more than
  ///         kMaxPixels pixels, if the images of a batch differ in size, or if an index is out of
  ///         range.
  /// @{
  Batch get_batch(std::span<const int64_t> indices) override;
  std::vector<Batch> get_samples(std::span<const int64_t> indices) override;
  Batch get_epoch_batch(const TransformContext& context) override;
  std::vector<Batch> get_epoch_samples(const TransformContext& context) override;
  /// @}

  /// The names of the classes, indexed by their numbers.
  const std::vector<std::string>& classes() const { return classes_; }
  /// The number of each class, by name.
  const std::map<std::string, int64_t>& class_to_idx() const { return class_to_idx_; }

  /// One file of the folder.
  struct Sample {
    /// The path, which begins with the root as it was passed.
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
