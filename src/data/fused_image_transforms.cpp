// Applies crops, flips, erasings and normalisation in one pass: first plans where each pixel comes
// from, then draws the images.

#include "data/fused_image_transforms.hpp"

#include <ATen/ops/empty.h>

#include <algorithm>
#include <cmath>

#include "data/image_view.hpp"
#include "linkboy/error.hpp"

namespace linkboy {
namespace {

/// Returns one value for each channel, in the units of the images at this stage.
std::vector<float> colour_of(const char* what, const std::vector<double>& values, int64_t channels,
                             bool is_bytes) {
  LINKBOY_CHECK(values.size() == 1 || static_cast<int64_t>(values.size()) == channels, what,
                " has ", values.size(), " values, but the images have ", channels,
                " channels; set one value, or one for each channel.");
  std::vector<float> colour(channels);
  for (int64_t c = 0; c < channels; ++c) {
    const double value = values[values.size() == 1 ? 0 : c];
    LINKBOY_CHECK(!is_bytes || (value >= 0.0 && value <= 255.0 && value == std::floor(value)), what,
                  " has ", value,
                  ", but the images are still uint8; it must be an integer from 0 to 255. Change "
                  "it, or put normalise before this transform.");
    colour[c] = static_cast<float>(value);
  }
  return colour;
}

/// A stage, with the values that are the same for all images of a batch.
struct PlannedStage {
  const ImageStage* stage;
  uint64_t key = 0;
  // The size of the images before the stage.
  int64_t height;
  int64_t width;
  std::vector<float> colour{};
};

/// Plans one stage after another. Checks that each stage fits the images that the previous stages
/// produce.
class Planner {
 public:
  Planner(const Images& images, const TransformContext& context)
      : height(images.height),
        width(images.width),
        is_bytes(images.is_bytes()),
        context_(context),
        channels_(images.channels) {}

  // The planned stages, and the properties of the images after them.
  std::vector<PlannedStage> plan{};
  int64_t height;
  int64_t width;
  bool is_bytes;

  void add(const ImageStage& stage, uint64_t occurrence) {
    occurrence_ = occurrence;
    plan.push_back({.stage = &stage, .height = height, .width = width});
    std::visit(*this, stage);
  }

  void operator()(const CropStage& stage) {
    const int64_t padding = stage.options.padding;
    LINKBOY_CHECK(
        height + 2 * padding >= stage.size.height && width + 2 * padding >= stage.size.width,
        "random_crop: images of ", height, " x ", width, " with a padding of ", padding,
        " are smaller than the crop, ", stage.size.height, " x ", stage.size.width,
        "; they must be at least as large. Increase the padding or reduce the crop.");
    set_key(stage.kKind);
    set_colour("random_crop: fill", stage.options.fill);
    height = stage.size.height;
    width = stage.size.width;
  }

  void operator()(const FlipStage& stage) { set_key(stage.kKind); }

  void operator()(const ErasingStage& stage) {
    LINKBOY_CHECK(!stage.options.noise || !is_bytes,
                  "random_erasing: noise is set, but the images are still uint8; they must "
                  "be float. Put normalise before it.");
    set_key(stage.kKind);
    if (!stage.options.noise) set_colour("random_erasing: value", stage.options.value);
  }

  void operator()(const CutoutStage& stage) {
    set_key(stage.kKind);
    set_colour("cutout: fill", stage.fill);
  }

  void operator()(const NormaliseStage& stage) {
    LINKBOY_CHECK(stage.mean.size() == 1 || static_cast<int64_t>(stage.mean.size()) == channels_,
                  "normalise: there are ", stage.mean.size(), " means, but the images have ",
                  channels_, " channels; set one mean and std, or one for each channel.");
    // Earlier patches are normalised, too.
    for (auto& earlier : plan) {
      for (std::size_t c = 0; c < earlier.colour.size(); ++c) {
        float& value = earlier.colour[c];
        const auto channel = static_cast<int64_t>(c);
        value = is_bytes ? stage.table_of(channel)[static_cast<uint8_t>(value)]
                         : stage.of_float(value, channel);
      }
    }
    is_bytes = false;
  }

 private:
  void set_key(RandomKind kind) { plan.back().key = random_key(context_, {kind, occurrence_}); }
  void set_colour(const char* what, const std::vector<double>& values) {
    plan.back().colour = colour_of(what, values, channels_, is_bytes);
  }

  const TransformContext& context_;
  int64_t channels_;
  uint64_t occurrence_ = 0;
};

/// Draws a stage's random numbers and changes the canvas accordingly.
struct ApplyStage {
  const PlannedStage& plan;
  int64_t index;
  Canvas& canvas;

  void operator()(const CropStage& stage) const {
    SampleRandom random(plan.key, index);
    const int64_t padding = stage.options.padding;
    const int64_t top = random.below(plan.height + 2 * padding - stage.size.height + 1) - padding;
    const int64_t left = random.below(plan.width + 2 * padding - stage.size.width + 1) - padding;
    canvas.crop(top, left, stage.size, plan.colour.data());
  }

  void operator()(const FlipStage& stage) const {
    if (SampleRandom(plan.key, index).chance(stage.p)) canvas.flip();
  }

  void operator()(const ErasingStage& stage) const {
    const RandomErasingOptions& options = stage.options;
    SampleRandom random(plan.key, index);
    if (!random.chance(options.p)) return;
    const double area = static_cast<double>(plan.height) * static_cast<double>(plan.width);
    for (int attempt = 0; attempt < 10; ++attempt) {
      const double erased = area * random.uniform(options.scale.first, options.scale.second);
      const double ratio =
          std::exp(random.uniform(std::log(options.ratio.first), std::log(options.ratio.second)));
      const double height = std::nearbyint(std::sqrt(erased * ratio));
      const double width = std::nearbyint(std::sqrt(erased / ratio));
      // A NaN does not fit either. Ratios near the limits of double can produce one.
      const bool fits =
          height < static_cast<double>(plan.height) && width < static_cast<double>(plan.width);
      if (!fits) continue;
      const auto rows = static_cast<int64_t>(height);
      const auto columns = static_cast<int64_t>(width);
      const int64_t top = random.below(plan.height - rows + 1);
      const int64_t left = random.below(plan.width - columns + 1);
      const Rectangle where = {top, left, top + rows, left + columns};
      if (options.noise) {
        canvas.paint_noise(where, random);
      } else {
        canvas.paint(where, plan.colour.data());
      }
      return;
    }
  }

  void operator()(const CutoutStage& stage) const {
    SampleRandom random(plan.key, index);
    const int64_t top = random.below(plan.height) - stage.size / 2;
    const int64_t left = random.below(plan.width) - stage.size / 2;
    canvas.paint({top, left, top + stage.size, left + stage.size}, plan.colour.data());
  }

  void operator()(const NormaliseStage&) const {}  // applied as the map when the image is drawn
};

/// Draws all images of a batch.
template <class In, class Out, class MakeMap>
void draw_images(const std::vector<PlannedStage>& plan, const Images& images,
                 std::span<const int64_t> indices, at::Tensor& out, MakeMap make_map) {
  Canvas canvas;
  const In* source = images.tensor.const_data_ptr<In>();
  Out* place = out.mutable_data_ptr<Out>();
  const int64_t out_channel_size = out.size(-1) * out.size(-2);
  for (int64_t i = 0; i < images.count; ++i) {
    canvas.reset(images.height, images.width);
    for (const auto& planned : plan) {
      std::visit(ApplyStage{planned, indices[i], canvas}, *planned.stage);
    }
    for (int64_t c = 0; c < images.channels; ++c) {
      canvas.draw_channel(source + i * images.image_stride + c * images.channel_stride,
                          images.row_stride, images.column_stride, c, place, make_map(c));
      place += out_channel_size;
    }
  }
}

}  // namespace

NormaliseStage::NormaliseStage(const std::vector<double>& mean, const std::vector<double>& std)
    : mean(mean.begin(), mean.end()), std(std.begin(), std.end()) {
  for (std::size_t c = 0; c < mean.size(); ++c) {
    for (int byte = 0; byte < 256; ++byte) {
      // volatile: a fused multiply-add would not be bit-identical to torchvision.
      const volatile float scaled = static_cast<float>(byte) * static_cast<float>(1.0 / 255.0);
      table.push_back(of_float(scaled, static_cast<int64_t>(c)));
    }
  }
}

Images::Images(const at::Tensor& images, const TransformContext& context) : tensor(images) {
  LINKBOY_CHECK(
      tensor.defined() && (tensor.dim() == 3 || tensor.dim() == 4), "the batch's first tensor is ",
      tensor.defined() ? "of shape " : "undefined",
      tensor.defined() ? c10::str(tensor.sizes()) : "",
      "; images must be [N, C, H, W] or [N, H, W]. Make the first tensor have this shape.");
  LINKBOY_CHECK(tensor.scalar_type() == at::kByte || tensor.scalar_type() == at::kFloat,
                "the images are ", tensor.scalar_type(),
                "; they must be Byte (uint8) or Float. Convert the dataset's tensor.");
  LINKBOY_CHECK(tensor.is_cpu() && tensor.layout() == at::kStrided, "the images are on ",
                tensor.device(), ", ", tensor.layout(),
                "; they must be strided, on the CPU. Keep the dataset's tensors there: complete "
                "batches are copied to the device.");
  const bool has_channels = tensor.dim() == 4;
  count = tensor.size(0);
  channels = has_channels ? tensor.size(1) : 1;
  height = tensor.size(-2);
  width = tensor.size(-1);
  image_stride = tensor.stride(0);
  channel_stride = has_channels ? tensor.stride(1) : 0;
  row_stride = tensor.stride(-2);
  column_stride = tensor.stride(-1);
  LINKBOY_CHECK(height >= 1 && height <= kMaxSide && width >= 1 && width <= kMaxSide,
                "the images are ", height, " x ", width, "; both sides must be 1 to ", kMaxSide,
                " pixels long. Check the order of the dimensions: [N, C, H, W].");
  LINKBOY_CHECK(static_cast<int64_t>(context.indices.size()) == count, "there are ", count,
                " images, but the context has ", context.indices.size(),
                " indices; it must have one per image. Pass only the images of these indices.");
}

bool Images::is_bytes() const { return tensor.scalar_type() == at::kByte; }

at::Tensor Images::empty_like(int64_t height, int64_t width, at::ScalarType type) const {
  if (tensor.dim() == 3) return at::empty({count, height, width}, type);
  return at::empty({count, channels, height, width}, type);
}

bool ImagePass::takes(const ImageStage& stage) const {
  const auto* normalise = std::get_if<NormaliseStage>(&stage);
  if (normalise != nullptr && normalise_stage() != nullptr) return false;
  // Noise is drawn at its final position, so that only stages that paint over it can follow.
  const bool has_noise = std::any_of(stages_.begin(), stages_.end(), [](const auto& earlier) {
    const auto* erasing = std::get_if<ErasingStage>(&earlier.stage);
    return erasing != nullptr && erasing->options.noise;
  });
  return !has_noise || std::holds_alternative<ErasingStage>(stage) ||
         std::holds_alternative<CutoutStage>(stage);
}

void ImagePass::add(const ImageStage& stage, uint64_t occurrence) {
  stages_.push_back({stage, occurrence});
}

const NormaliseStage* ImagePass::normalise_stage() const {
  for (const auto& numbered : stages_) {
    if (const auto* stage = std::get_if<NormaliseStage>(&numbered.stage)) return stage;
  }
  return nullptr;
}

at::Tensor ImagePass::operator()(const at::Tensor& tensor, const TransformContext& context) const {
  const Images images(tensor, context);
  Planner planner(images, context);
  for (const auto& numbered : stages_) planner.add(numbered.stage, numbered.occurrence);

  const auto& plan = planner.plan;
  at::Tensor out =
      images.empty_like(planner.height, planner.width, planner.is_bytes ? at::kByte : at::kFloat);
  const NormaliseStage* normalise = normalise_stage();
  const auto& indices = context.indices;
  if (normalise == nullptr) {
    const auto copy = [](int64_t) { return Copy(); };
    if (images.is_bytes()) {
      draw_images<uint8_t, uint8_t>(plan, images, indices, out, copy);
    } else {
      draw_images<float, float>(plan, images, indices, out, copy);
    }
  } else if (images.is_bytes()) {
    draw_images<uint8_t, float>(plan, images, indices, out, [&](int64_t channel) {
      return [table = normalise->table_of(channel)](uint8_t byte) { return table[byte]; };
    });
  } else {
    draw_images<float, float>(plan, images, indices, out, [&](int64_t channel) {
      const std::size_t place = normalise->place(channel);
      return [mean = normalise->mean[place], std = normalise->std[place]](float value) {
        return (value - mean) / std;
      };
    });
  }
  return out;
}

}  // namespace linkboy
