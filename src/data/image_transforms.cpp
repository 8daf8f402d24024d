// Creates the image transforms. `compose` combines adjacent ones into one pass over the pixels.

#include "linkboy/data/image_transforms.hpp"

#include <cmath>
#include <map>
#include <string>
#include <variant>

#include "data/fused_image_transforms.hpp"
#include "data/image_mixing.hpp"
#include "linkboy/error.hpp"

namespace linkboy {
namespace {

/// The function object in every Transform that this file returns. `compose` recognises it and
/// treats its steps as if they were listed directly.
class Composed {
 public:
  using Step = std::variant<ImageStage, Mixing, Transform>;

  explicit Composed(std::vector<Step> steps) : steps_(std::move(steps)) {
    std::map<RandomKind, uint64_t> occurrences;
    for (const Step& step : steps_) {
      if (const auto* stage = std::get_if<ImageStage>(&step)) {
        add(*stage, occurrences);
      } else if (const auto* mixing = std::get_if<Mixing>(&step)) {
        Mixing numbered = *mixing;
        numbered.occurrence = occurrences[mixing->kind]++;
        parts_.emplace_back(numbered);
      } else {
        parts_.emplace_back(std::get<Transform>(step));
      }
    }
  }

  Batch operator()(Batch batch, const TransformContext& context) const {
    for (const Part& part : parts_) {
      if (const auto* pass = std::get_if<ImagePass>(&part)) {
        at::Tensor images = (*pass)(batch.input(), context);
        batch.set(std::string(batch.tensors()[0].first), std::move(images));
      } else if (const auto* mixing = std::get_if<Mixing>(&part)) {
        batch = (*mixing)(std::move(batch), context);
      } else {
        batch = std::get<Transform>(part)(std::move(batch), context);
      }
    }
    return batch;
  }

  const std::vector<Step>& steps() const { return steps_; }

 private:
  using Part = std::variant<ImagePass, Mixing, Transform>;

  void add(const ImageStage& stage, std::map<RandomKind, uint64_t>& occurrences) {
    const uint64_t occurrence = std::visit(
        [&](const auto& of_kind) -> uint64_t {
          if constexpr (requires { of_kind.kKind; }) {
            return occurrences[of_kind.kKind]++;
          } else {
            return 0;  // it does not draw random numbers
          }
        },
        stage);
    auto* pass = parts_.empty() ? nullptr : std::get_if<ImagePass>(&parts_.back());
    if (pass == nullptr || !pass->takes(stage)) {
      pass = &std::get<ImagePass>(parts_.emplace_back(ImagePass()));
    }
    pass->add(stage, occurrence);
  }

  std::vector<Step> steps_;
  std::vector<Part> parts_;
};

Transform single(Composed::Step step) { return Composed({std::move(step)}); }

void check_probability(const char* name, double p) {
  LINKBOY_CHECK_OPTION(p >= 0.0 && p <= 1.0, name, ": p is ", p, "; it must be 0 to 1.");
}

void check_length(const char* name, int64_t value, int64_t least) {
  LINKBOY_CHECK_OPTION(value >= least && value <= kMaxSide, name, " is ", value, "; it must be ",
                       least, " to ", kMaxSide, " pixels.");
}

void check_not_empty(const char* name, const std::vector<double>& values) {
  LINKBOY_CHECK_OPTION(!values.empty(), name,
                       " has no values; set one, or one for each channel of the images.");
}

Transform make_mixing(const char* name, RandomKind kind, double alpha, int64_t num_classes,
                      const MixOptions& options) {
  LINKBOY_CHECK_OPTION(alpha > 0.0 && std::isfinite(alpha), name, ": alpha is ", alpha,
                       "; it must be above 0 and finite. Remove ", name, " to disable mixing.");
  LINKBOY_CHECK_OPTION(num_classes >= 1, name, ": num_classes is ", num_classes,
                       "; it must be at least 1.");
  check_probability(name, options.p);
  return single(Mixing{kind, alpha, num_classes, options});
}

}  // namespace

Transform compose(std::vector<Transform> transforms) {
  std::vector<Composed::Step> steps;
  for (std::size_t i = 0; i < transforms.size(); ++i) {
    LINKBOY_CHECK_OPTION(transforms[i] != nullptr, "compose: transform ", i,
                         " is an empty function; every transform must be callable. Leave it out.");
    if (const auto* composed = transforms[i].target<Composed>()) {
      steps.insert(steps.end(), composed->steps().begin(), composed->steps().end());
    } else {
      steps.emplace_back(std::move(transforms[i]));
    }
  }
  return Composed(std::move(steps));
}

Transform normalise(const std::vector<double>& mean, const std::vector<double>& std) {
  check_not_empty("normalise: mean", mean);
  LINKBOY_CHECK_OPTION(mean.size() == std.size(), "normalise: mean has ", mean.size(),
                       " values and std has ", std.size(),
                       "; they must have the same number of values.");
  for (std::size_t c = 0; c < mean.size(); ++c) {
    LINKBOY_CHECK_OPTION(std::isfinite(static_cast<float>(mean[c])), "normalise: a mean is ",
                         mean[c], "; it must be finite.");
    LINKBOY_CHECK_OPTION(
        static_cast<float>(std[c]) > 0.0F && std::isfinite(static_cast<float>(std[c])),
        "normalise: a std is ", std[c],
        "; it must be above 0 and finite as a float. Set 1 for no scaling.");
  }
  return single(ImageStage(NormaliseStage(mean, std)));
}

Transform random_crop(ImageSize size, const RandomCropOptions& options) {
  check_length("random_crop: height", size.height, 1);
  check_length("random_crop: width", size.width, 1);
  check_length("random_crop: padding", options.padding, 0);
  check_not_empty("random_crop: fill", options.fill);
  return single(ImageStage(CropStage{size, options}));
}

Transform random_horizontal_flip(double p) {
  check_probability("random_horizontal_flip", p);
  return single(ImageStage(FlipStage{p}));
}

Transform random_erasing(const RandomErasingOptions& options) {
  const auto& [scale, ratio] = std::pair(options.scale, options.ratio);
  check_probability("random_erasing", options.p);
  LINKBOY_CHECK_OPTION(scale.first >= 0.0 && scale.first <= scale.second && scale.second <= 1.0,
                       "random_erasing: scale is ", scale.first, " to ", scale.second,
                       "; it must lie in 0 to 1, the smaller value first.");
  LINKBOY_CHECK_OPTION(
      ratio.first > 0.0 && ratio.first <= ratio.second && std::isfinite(ratio.second),
      "random_erasing: ratio is ", ratio.first, " to ", ratio.second,
      "; both must be above 0 and finite, the smaller value first.");
  check_not_empty("random_erasing: value", options.value);
  return single(ImageStage(ErasingStage{options}));
}

Transform cutout(int64_t size, const std::vector<double>& fill) {
  check_length("cutout: size", size, 1);
  check_not_empty("cutout: fill", fill);
  return single(ImageStage(CutoutStage{size, fill}));
}

Transform mixup(double alpha, int64_t num_classes, const MixOptions& options) {
  return make_mixing("mixup", RandomKind::mixup, alpha, num_classes, options);
}

Transform cutmix(double alpha, int64_t num_classes, const MixOptions& options) {
  return make_mixing("cutmix", RandomKind::cutmix, alpha, num_classes, options);
}

}  // namespace linkboy
