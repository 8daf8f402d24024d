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
/// `size`. A rectangle that does not fit is drawn again, up to ten draws in total. If none fits,
/// uses the largest rectangle in the middle that has an allowed ratio.
struct RandomResizedCrop {
  /// Size of the result in pixels.
  ImageSize size;
  /// Range of the rectangle's area divided by that of the image; the distribution is uniform. Must
  /// be in (0, 1], the smaller value first.
  std::pair<double, double> scale = {0.08, 1.0};
  /// Range of the rectangle's width divided by its height; the logarithm is uniform. Both must be
  /// positive, the smaller value first.
  std::pair<double, double> ratio = {3.0 / 4.0, 4.0 / 3.0};
};

/// The operations of ImageFolder on each image, in this order. A batch requires images of the same
/// size: set `center_crop` or `random_resized_crop`, or pass a `collate_fn` to the loader.
struct ImageFolderOptions {
  /// The number of pixels of the shorter side after resizing, as in torchvision's Resize;
  /// `resize_image` describes the values. Must be at least 1. If not set, the size does not change.
  std::optional<int64_t> resize{};
  /// The size that is cut out of the middle. If not set, nothing is cut off.
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
/// A file is read and decoded when its batch is made, by the thread that makes it, so the loader
/// should have workers. `decode_image` lists the formats. Random crops depend only on (seed, epoch,
/// index).
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
  /// @throws Error if an image is smaller than `center_crop`, if the images of a batch differ in
  ///         size, or if an index is out of range.
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
