#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <variant>
#include <vector>

#include "data/image_random.hpp"
#include "linkboy/data/image_transforms.hpp"

namespace linkboy {

// One struct for each transform of single images. Their options have been checked.

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

  /// One entry for each channel, or one for all of them.
  std::vector<float> mean;
  std::vector<float> std;
  /// What becomes of each of the 256 values of a byte, channel by channel.
  std::vector<float> table;

  float of_float(float value, int64_t channel) const {
    return (value - mean[place(channel)]) / std[place(channel)];
  }
  const float* table_of(int64_t channel) const { return &table[256 * place(channel)]; }
  std::size_t place(int64_t channel) const { return mean.size() == 1 ? 0 : channel; }
};

using ImageStage = std::variant<CropStage, FlipStage, ErasingStage, CutoutStage, NormaliseStage>;

/// The first tensor of a batch, known to be images.
struct Images {
  /// @throws Error if it is not, or there is not one index for each.
  Images(const at::Tensor& tensor, const TransformContext& context);

  bool is_bytes() const;
  /// An uninitialised tensor like this one, with as many dimensions.
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

/// Longest side of an image, and largest padding: sums of three stay below 2^32.
inline constexpr int64_t kMaxSide = int64_t{1} << 30;

/// Stages that are done in one pass over the bytes of each image. No pixel is moved twice: the
/// stages first say where each pixel comes from, then the image is drawn.
class ImagePass {
 public:
  /// Whether `stage` can be done in the same pass as the stages so far.
  bool takes(const ImageStage& stage) const;

  /// @param occurrence  How many stages of that kind came before, in this pass or another.
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
