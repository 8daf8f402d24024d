// Image augmentation on the loader's worker threads.
//
//     options.transform = compose({
//         random_crop(32, {.padding = 4}),
//         random_horizontal_flip(),
//         normalise({0.4914, 0.4822, 0.4465}, {0.2470, 0.2435, 0.2616}),
//     });
//
// What all of these transforms have in common:
//
// - The images are the batch's first tensor: [N, C, H, W], or [N, H, W] for images of a single
//   channel, which stay three-dimensional. They are uint8 or float32, on the CPU, with any
//   strides. uint8 images stay uint8 until `normalise`, so `fill` and `value` are in the units
//   that the images have at that place: 0 to 255 for uint8.
// - The tensors that a transform is given are never written to: a batch may share memory with the
//   dataset. What comes out is contiguous.
// - Random numbers depend on (seed, epoch, dataset index) and on which transform it is, not on the
//   workers, the batch, or the place in it. In one `compose`, the second transform of a kind (a
//   second flip, say) has numbers of its own; outside of one, all of a kind share theirs.
// - They may be called from any number of threads at once, and start no threads of their own.
// - A call @throws Error if the images are not as above, a side is not 1 to 2^30 pixels long, or
//   `TransformContext::indices` does not have one index per image.

#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "linkboy/data/data_loader.hpp"
#include "linkboy/export.hpp"

namespace linkboy {

/// Does all of `transforms`, one after the other; those of one's own (lambdas) may be among them.
///
/// Neighbouring crops, flips, erasings, cutouts and a `normalise` become one pass over the bytes of
/// each image, with the same result in every bit as one after the other. Another `compose` inside
/// counts as if its transforms stood there themselves. With none the batch stays as it is.
/// @throws Error if one of them is an empty function.
LINKBOY_API Transform compose(std::vector<Transform> transforms);

/// Float32 images (x - mean) / std, where uint8 values are first scaled by 1/255 and float ones are
/// taken as they are. Equal in every bit to torchvision v2's ToDtype(float32, scale=True) and
/// Normalize.
/// @param mean  One value for each channel, or one for all.
/// @param std  As many, each greater than 0.
/// @throws Error if they are empty, differ in number, or have a value that is not allowed; a call
///         if there are not as many as channels.
LINKBOY_API Transform normalise(const std::vector<double>& mean, const std::vector<double>& std);

/// In pixels. A single number makes a square.
struct ImageSize {
  /// A square.
  ImageSize(int64_t side) : height(side), width(side) {}  // NOLINT(google-explicit-constructor)
  /// A rectangle.
  ImageSize(int64_t rows, int64_t columns) : height(rows), width(columns) {}

  /// At least 1.
  int64_t height;
  /// At least 1.
  int64_t width;
};

struct RandomCropOptions {
  /// Pixels added on each of the four sides before the crop is taken. At least 0.
  int64_t padding = 0;
  /// What the padding shows: one value for each channel, or one for all.
  std::vector<double> fill = {0.0};
};

/// Cuts `size` out of each padded image; every place is equally likely.
/// @throws Error if an option is out of its range; a call if the padded images are smaller than
///         `size` or `fill` does not fit the images.
LINKBOY_API Transform random_crop(ImageSize size, const RandomCropOptions& options = {});

/// Mirrors each image left to right with probability `p`.
/// @throws Error if `p` is not 0 to 1.
LINKBOY_API Transform random_horizontal_flip(double p = 0.5);

struct RandomErasingOptions {
  /// The probability that an image loses a rectangle.
  double p = 0.5;
  /// Area of the rectangle over that of the image, uniform between these two (0 to 1).
  std::pair<double, double> scale = {0.02, 0.33};
  /// Its height over its width, between these two (above 0), with a uniform logarithm.
  std::pair<double, double> ratio = {0.3, 3.3};
  /// What it shows: one value for each channel, or one for all.
  std::vector<double> value = {0.0};
  /// Shows standard normal noise instead, a number for each pixel. Float images only.
  bool noise = false;
};

/// Replaces a random rectangle of each image, as torchvision's RandomErasing: a rectangle that does
/// not fit is drawn anew, up to ten times; then the image stays whole.
/// @throws Error if an option is out of its range; a call if `value` or `noise` does not fit the
///         images.
LINKBOY_API Transform random_erasing(const RandomErasingOptions& options = {});

/// Replaces a square of each image whose centre is any pixel with equal chance; what sticks out of
/// the image is cut off.
/// @param size  Side of the square in pixels, at least 1. It covers [c - size / 2, c + size - size
///              / 2) around the centre c.
/// @param fill  What it shows: one value for each channel, or one for all.
/// @throws Error if `size` is out of its range; a call if `fill` does not fit the images.
LINKBOY_API Transform cutout(int64_t size, const std::vector<double>& fill = {0.0});

struct MixOptions {
  /// The probability that a sample is mixed.
  double p = 1.0;
};

/// Mixes each sample with another of its batch: lambda * x + (1 - lambda) * partner, images and
/// targets alike, with lambda from Beta(alpha, alpha), drawn for each sample.
///
/// The second tensor of the batch, integer classes [N], becomes probabilities, float32
/// [N, num_classes], as cross_entropy takes them; samples that are not mixed have a 1 in them.
/// Float probabilities [N, num_classes] are taken as well: mixes can follow each other. The partner
/// is any other sample of the batch with equal chance (in a batch of one, the sample itself), as
/// the transforms before have left it; so it depends on the batch, and lambda does not.
///
/// Images must be float32: put `normalise` before.
/// @throws Error if `alpha` is not above 0, `num_classes` is less than 1 or `p` is not 0 to 1; a
///         call if there is no second tensor, or it is none of the above, or has a class that is
///         not 0 to num_classes - 1.
LINKBOY_API Transform mixup(double alpha, int64_t num_classes, const MixOptions& options = {});

/// As mixup, but the sample gets a rectangle of its partner, from the same place: of the image's
/// height and width times sqrt(1 - lambda) each, around any pixel, less what sticks out. The
/// targets are mixed by the area that is left. uint8 images are taken as well.
/// @throws Error as mixup.
LINKBOY_API Transform cutmix(double alpha, int64_t num_classes, const MixOptions& options = {});

}  // namespace linkboy
