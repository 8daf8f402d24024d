// mixup and cutmix: combine each image and its target with those of another sample of the batch.

#include <ATen/ops/empty.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "data/image_batch.hpp"
#include "linkboy/error.hpp"

namespace linkboy {
namespace {

/// The options of mixup or cutmix.
struct Mixing {
  const char* name;
  RandomKind kind;
  double alpha;
  int64_t num_classes;
  double p;
};

/// Returns the target as float32 [count, num_classes] in new memory.
at::Tensor probabilities_of(const at::Tensor& target, const Mixing& mixing, int64_t count) {
  const char* const name = mixing.name;
  const int64_t num_classes = mixing.num_classes;
  LINKBOY_CHECK(target.defined() && target.is_cpu(), name,
                ": the target is not a tensor on the CPU. Make the dataset return one.");
  const at::ScalarType type = target.scalar_type();
  const bool is_classes = target.dim() == 1 && target.size(0) == count &&
                          (type == at::kLong || type == at::kInt || type == at::kByte);
  LINKBOY_CHECK(is_classes || (type == at::kFloat && target.dim() == 2 && target.size(0) == count &&
                               target.size(1) == num_classes),
                name, ": the target is ", type, " of shape ", target.sizes(),
                "; it must be integer classes (Long, Int, Byte) [", count,
                "], or Float probabilities [", count, ", ", num_classes, "].");
  at::Tensor out = at::empty({count, num_classes}, at::kFloat);
  float* row = out.mutable_data_ptr<float>();
  const at::Tensor classes = is_classes ? target.to(at::kLong) : at::Tensor();
  for (int64_t i = 0; i < count; ++i, row += num_classes) {
    if (is_classes) {
      const int64_t label = classes.accessor<const int64_t, 1>()[i];
      LINKBOY_CHECK(label >= 0 && label < num_classes, name, ": sample ", i,
                    " of the batch has class ", label, "; classes must be 0 to ", num_classes - 1,
                    ". Set the right num_classes.");
      std::fill_n(row, num_classes, 0.0F);
      row[label] = 1.0F;
    } else {
      const auto probabilities = target.accessor<const float, 2>()[i];
      for (int64_t k = 0; k < num_classes; ++k) row[k] = probabilities[k];
    }
  }
  return out;
}

/// Computes weight * own + (1 - weight) * partner. It is compiled for bytes but never called with
/// them, because mixup rejects byte images.
template <class T>
void blend(const T* own, const T* partner, float weight, int64_t count, T* out) {
  const float rest = 1.0F - weight;
  for (int64_t i = 0; i < count; ++i) {
    out[i] =
        static_cast<T>(weight * static_cast<float>(own[i]) + rest * static_cast<float>(partner[i]));
  }
}

/// Returns begin and end of `part` of `side`, around a random centre and cut off at the edges.
std::pair<int64_t, int64_t> random_part(SampleRandom& random, int64_t side, double part) {
  const auto length = static_cast<int64_t>(static_cast<double>(side) * part);
  const int64_t begin = random.below(side) - length / 2;
  return {std::max<int64_t>(begin, 0), std::min(begin + length, side)};
}

/// Copies a random rectangle of `partner`, whose sides are `part` of the image's, to `out`. Returns
/// the rectangle's share of the image's area.
template <class T>
double paste(const Images& images, const T* partner, double part, SampleRandom& random, T* out) {
  const auto [top, bottom] = random_part(random, images.height, part);
  const auto [left, right] = random_part(random, images.width, part);
  for (int64_t c = 0; c < images.channels; ++c) {
    for (int64_t y = top; y < bottom; ++y) {
      const int64_t row = (c * images.height + y) * images.width;
      std::copy(partner + row + left, partner + row + right, out + row + left);
    }
  }
  return static_cast<double>((bottom - top) * (right - left)) /
         static_cast<double>(images.height * images.width);
}

/// Returns the mixed images, and sets the target of the batch to mixed probabilities.
at::Tensor mix_samples(const Mixing& mixing, const Images& images, Batch& batch) {
  const bool is_mixup = mixing.kind == RandomKind::mixup;
  const int64_t num_classes = mixing.num_classes;
  LINKBOY_CHECK(!is_mixup || !images.is_bytes(),
                "mixup: the images are uint8; they must be float. Put normalise before it.");
  const at::Tensor target = probabilities_of(batch.target(), mixing, images.count);
  at::Tensor mixed_target = copy_of(target);
  at::Tensor mixed = at::empty(images.pixels.sizes(), images.pixels.options());
  images.visit_type([&](auto pixel) {
    using T = decltype(pixel);
    for (int64_t i = 0; i < images.count; ++i) {
      const int64_t size = images.image_size();
      const T* const all = images.pixels.const_data_ptr<T>();
      T* const out = mixed.mutable_data_ptr<T>() + i * size;
      SampleRandom random = images.random(i);
      const bool is_mixed = random.chance(mixing.p) && images.count > 1;
      if (!is_mixed || !is_mixup) std::copy_n(all + i * size, size, out);
      if (!is_mixed) continue;
      double weight = random.beta(mixing.alpha);  // of the sample itself
      const int64_t partner = (i + 1 + random.below(images.count - 1)) % images.count;
      if (is_mixup) {
        blend(all + i * size, all + partner * size, static_cast<float>(weight), size, out);
      } else {
        const double part = std::sqrt(1.0 - weight);
        weight = 1.0 - paste(images, all + partner * size, part, random, out);
      }
      const float* const targets = target.const_data_ptr<float>();
      blend(targets + i * num_classes, targets + partner * num_classes, static_cast<float>(weight),
            num_classes, mixed_target.mutable_data_ptr<float>() + i * num_classes);
    }
  });
  batch.set(batch.tensors()[1].first, std::move(mixed_target));
  return mixed;
}

Transform make_mixing(const Mixing& mixing) {
  LINKBOY_CHECK_OPTION(mixing.alpha > 0.0 && std::isfinite(mixing.alpha), mixing.name,
                       ": alpha is ", mixing.alpha, "; it must be above 0 and finite. Remove ",
                       mixing.name, " to disable mixing.");
  LINKBOY_CHECK_OPTION(mixing.num_classes >= 1, mixing.name, ": num_classes is ",
                       mixing.num_classes, "; it must be at least 1.");
  check_probability(mixing.name, mixing.p);
  return ImageTransform{mixing.kind, [=](const Images& images, Batch& batch) {
                          return mix_samples(mixing, images, batch);
                        }};
}

}  // namespace

Transform mixup(double alpha, int64_t num_classes, const MixOptions& options) {
  return make_mixing({"mixup", RandomKind::mixup, alpha, num_classes, options.p});
}

Transform cutmix(double alpha, int64_t num_classes, const MixOptions& options) {
  return make_mixing({"cutmix", RandomKind::cutmix, alpha, num_classes, options.p});
}

}  // namespace linkboy
