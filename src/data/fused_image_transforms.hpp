#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <variant>
#include <vector>

#include "data/image_random.hpp"
#include "linkboy/data/image_transforms.hpp"

namespace linkboy {

// One struct for each transform of single images, with options that have been checked.

struct CropStage {
  static constexpr auto kKind = RandomKind::crop;
  ImageSize size;
  RandomCropOptions options;
};

struct FlipStage {
  static constexpr auto kKind = RandomKind::flip;
  double p;
};

struct ErasingStage {
  static constexpr auto kKind = RandomKind::erasing;
  RandomErasingOptions options;
};

struct CutoutStage {
  static constexpr auto kKind = RandomKind::cutout;
  int64_t size;
  std::vector<double> fill;
};

struct NormaliseStage {
  NormaliseStage(const std::vector<double>& mean, const std::vector<double>& std);

  /// One entry for each channel, or one for all.
  std::vector<float> mean;
  std::vector<float> std;
  /// The results for the 256 values of a byte, channel by channel.
  std::vector<float> table;

  float of_float(float value, int64_t channel) const {
    return (value - mean[place(channel)]) / std[place(channel)];
  }
  const float* table_of(int64_t channel) const { return &table[256 * place(channel)]; }
  std::size_t place(int64_t channel) const { return mean.size() == 1 ? 0 : channel; }
};

using ImageStage = std::variant<CropStage, FlipStage, ErasingStage, CutoutStage, NormaliseStage>;

/// The first tensor of a batch, after a check that it contains images.
struct Images {
  /// @throws Error if it does not contain images, or if `context` does not have one index per
  ///         image.
  Images(const at::Tensor& tensor, const TransformContext& context);

  bool is_bytes() const;
  /// Returns an uninitialised tensor with the same number of dimensions as `tensor`.
  at::Tensor empty_like(int64_t height, int64_t width, at::ScalarType type) const;

  at::Tensor tensor;
  int64_t count;
  int64_t channels;
  int64_t height;
  int64_t width;
  // In elements.
  int64_t image_stride;
  int64_t channel_stride;
  int64_t row_stride;
  int64_t column_stride;
};

/// Maximum side of an image, and maximum padding. Sums of three such lengths stay below 2^32.
inline constexpr int64_t kMaxSide = int64_t{1} << 30;

/// Stages that are applied in one pass over the bytes of each image. Each pixel is moved only once:
/// the stages first determine the source of each pixel, then the image is drawn.
class ImagePass {
 public:
  /// Whether `stage` can be part of the same pass as the stages that were added so far.
  bool takes(const ImageStage& stage) const;

  /// @param occurrence  Number of earlier stages of this kind, in this pass or another.
  void add(const ImageStage& stage, uint64_t occurrence);

  at::Tensor operator()(const at::Tensor& images, const TransformContext& context) const;

 private:
  struct NumberedStage {
    ImageStage stage;
    uint64_t occurrence;
  };
  const NormaliseStage* normalise_stage() const;

  std::vector<NumberedStage> stages_;
};

}  // namespace linkboy
