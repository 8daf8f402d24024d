// Image augmentation on the loader's worker threads.
//
//     options.transform = compose({
//         random_crop(32, {.padding = 4}),
//         random_horizontal_flip(),
//         normalise({0.4914, 0.4822, 0.4465}, {0.2470, 0.2435, 0.2616}),
//     });
//
// These properties are common to all transforms:
//
// - The images are the batch's first tensor: [N, C, H, W], or [N, H, W] for images with a single
//   channel, which remain three-dimensional. They are uint8 or float32, on the CPU, with any
//   strides. uint8 images remain uint8 until `normalise`. `fill` and `value` have the scale of the
//   images at that point: 0 to 255 for uint8.
// - A transform never writes to its input tensors, because a batch may share memory with the
//   dataset. The results are contiguous.
// - Random numbers depend on (seed, epoch, dataset index) and on the transform, not on the workers,
//   the batch, or the position in it. Within a `compose`, a second transform of the same kind (such
//   as a second flip) draws different random numbers; outside of `compose`, all transforms of a
//   kind draw the same ones.
// - Several threads may call a transform at the same time. It does not start threads.
// - A call throws Error if the images do not meet these requirements, if a side is not 1 to 2^30
//   pixels long, or if `TransformContext::indices` does not have one index per image.

#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "linkboy/data/data_loader.hpp"
#include "linkboy/export.hpp"

namespace linkboy {

/// Returns a transform that applies all `transforms` in order. The list may contain custom
/// functions, such as lambdas.
///
/// The transforms of a nested `compose` are treated as if they were listed directly. An empty list
/// leaves the batch unchanged.
/// @throws OptionError if one of the transforms is an empty function.
LINKBOY_API Transform compose(std::vector<Transform> transforms);

/// Converts images to float32 and computes (x - mean) / std. uint8 values are first scaled by
/// 1/255; float values are not. The result is bit-identical to torchvision v2's ToDtype(float32,
/// scale=True) and Normalize.
/// @param mean  One value for each channel, or one for all.
/// @param std  As many values as `mean`, each greater than 0.
/// @throws OptionError if they are empty, differ in number, or contain a value that is not allowed;
///         a call throws Error if their number does not match the channels.
LINKBOY_API Transform normalise(const std::vector<double>& mean, const std::vector<double>& std);

/// Size of an image in pixels. A single number converts to a square.
struct ImageSize {
  /// Constructs the size of a square.
  ImageSize(int64_t side) : height(side), width(side) {}  // NOLINT(google-explicit-constructor)
  /// Constructs the size of a rectangle.
  ImageSize(int64_t rows, int64_t columns) : height(rows), width(columns) {}

  /// Number of rows. Must be at least 1.
  int64_t height;
  /// Number of columns. Must be at least 1.
  int64_t width;
};

/// Options of random_crop.
struct RandomCropOptions {
  /// Number of pixels added on each of the four sides before the crop is taken. Must not be
  /// negative.
  int64_t padding = 0;
  /// Value of the padding: one for each channel, or one for all.
  std::vector<double> fill = {0.0};
};

/// Pads each image and crops it to `size` at a random position; all positions are equally likely.
/// @throws OptionError if an option is out of range; a call throws Error if the padded images are
///         smaller than `size` or `fill` does not fit the images.
LINKBOY_API Transform random_crop(ImageSize size, const RandomCropOptions& options = {});

/// Mirrors each image left to right with probability `p`.
/// @throws OptionError if `p` is not in [0, 1].
LINKBOY_API Transform random_horizontal_flip(double p = 0.5);

/// Options of random_erasing.
struct RandomErasingOptions {
  /// Probability that an image is changed.
  double p = 0.5;
  /// Smallest and largest area of the rectangle relative to that of the image. The area is drawn
  /// uniformly between them. Must be in [0, 1].
  std::pair<double, double> scale = {0.02, 0.33};
  /// Smallest and largest ratio of the rectangle's height to its width. The logarithm of the ratio
  /// is drawn uniformly. Must be positive.
  std::pair<double, double> ratio = {0.3, 3.3};
  /// Value of the rectangle: one for each channel, or one for all.
  std::vector<double> value = {0.0};
  /// If true, fills the rectangle with standard normal noise, one number per pixel, instead of
  /// `value`. Float images only.
  bool noise = false;
};

/// Erases a random rectangle of each image, as torchvision's RandomErasing does. A rectangle that
/// does not fit is drawn again, up to ten draws in total. If none fits, the image does not change.
/// @throws OptionError if an option is out of range; a call throws Error if `value` or `noise` does
///         not fit the images.
LINKBOY_API Transform random_erasing(const RandomErasingOptions& options = {});

/// Fills a square of each image. All pixels are equally likely to be its centre; parts outside of
/// the image are cut off.
/// @param size  Side of the square in pixels; at least 1. It covers [c - size / 2, c + size - size
///        / 2) around the centre c.
/// @param fill  Value of the square: one for each channel, or one for all.
/// @throws OptionError if an option is out of range; a call throws Error if `fill` does not fit the
///         images.
LINKBOY_API Transform cutout(int64_t size, const std::vector<double>& fill = {0.0});

/// Options of mixup and cutmix.
struct MixOptions {
  /// Probability that a sample is mixed.
  double p = 1.0;
};

/// Mixes each sample, both image and target, with another sample of its batch: lambda * x + (1 -
/// lambda) * partner. For each sample, lambda is drawn from Beta(alpha, alpha).
///
/// The second tensor of the batch, integer classes [N] (int64, int32 or uint8), becomes float32
/// probabilities [N, num_classes], which cross_entropy accepts; a sample that is not mixed has a 1
/// for its class. Float32 probabilities [N, num_classes] are also accepted, so that several mixes
/// can follow each other. The partner is any other sample of the batch with equal probability (in a
/// batch of one, the sample itself), after the preceding transforms. The partner therefore depends
/// on the batch; lambda does not.
///
/// Images must be float32: put `normalise` before `mixup`.
/// @throws OptionError if `alpha` is not positive and finite, `num_classes` is less than 1 or `p`
///         is not in [0, 1]; a call throws Error if there is no second tensor, or if it does not
///         have one of these forms or has a class outside 0 to num_classes - 1.
LINKBOY_API Transform mixup(double alpha, int64_t num_classes, const MixOptions& options = {});

/// Mixes samples like mixup, but pastes a rectangle of the partner into the sample, at the same
/// position. Each side of the rectangle is the image's side times sqrt(1 - lambda). All pixels are
/// equally likely to be its centre, and parts outside of the image are cut off. The targets are
/// mixed in proportion to the areas. uint8 images are also accepted.
/// @throws The same errors as mixup.
LINKBOY_API Transform cutmix(double alpha, int64_t num_classes, const MixOptions& options = {});

}  // namespace linkboy
