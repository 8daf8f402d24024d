// mixup and cutmix: combine each image and its target with those of another sample of the batch.

#include "data/image_mixing.hpp"

#include <ATen/ops/empty.h>

#include <algorithm>
#include <cmath>

#include "data/fused_image_transforms.hpp"
#include "linkboy/error.hpp"

namespace linkboy {
namespace {

const char* name_of(RandomKind kind) { return kind == RandomKind::mixup ? "mixup" : "cutmix"; }

/// Writes rows in which row i has a 1 for the class of sample i.
template <class T>
void write_classes(const at::Tensor& target, const char* name, int64_t num_classes, float* out) {
  const T* classes = target.const_data_ptr<T>();
  const int64_t stride = target.stride(0);
  for (int64_t i = 0; i < target.size(0); ++i) {
    const auto label = static_cast<int64_t>(classes[i * stride]);
    LINKBOY_CHECK(label >= 0 && label < num_classes, name, ": sample ", i,
                  " of the batch has class ", label, "; classes must be 0 to ", num_classes - 1,
                  ". Set the right num_classes.");
    std::fill_n(out + i * num_classes, num_classes, 0.0F);
    out[i * num_classes + label] = 1.0F;
  }
}

void copy_probabilities(const at::Tensor& target, float* out) {
  const float* probabilities = target.const_data_ptr<float>();
  for (int64_t i = 0; i < target.size(0); ++i) {
    for (int64_t k = 0; k < target.size(1); ++k) {
      *out++ = probabilities[i * target.stride(0) + k * target.stride(1)];
    }
  }
}

/// Returns the target as float32 [count, num_classes] in new memory.
at::Tensor probabilities_of(const at::Tensor& target, const char* name, int64_t count,
                            int64_t num_classes) {
  LINKBOY_CHECK(target.defined() && target.is_cpu(), name,
                ": the target is not a tensor on the CPU. Make the dataset return one.");
  at::Tensor out = at::empty({count, num_classes}, at::kFloat);
  float* rows = out.mutable_data_ptr<float>();
  const bool is_classes = target.dim() == 1 && target.size(0) == count;
  if (is_classes && target.scalar_type() == at::kLong) {
    write_classes<int64_t>(target, name, num_classes, rows);
  } else if (is_classes && target.scalar_type() == at::kInt) {
    write_classes<int32_t>(target, name, num_classes, rows);
  } else if (is_classes && target.scalar_type() == at::kByte) {
    write_classes<uint8_t>(target, name, num_classes, rows);
  } else {
    LINKBOY_CHECK(target.scalar_type() == at::kFloat && target.dim() == 2 &&
                      target.size(0) == count && target.size(1) == num_classes,
                  name, ": the target is ", target.scalar_type(), " of shape ", target.sizes(),
                  "; it must be integer classes (Long, Int, Byte) [", count,
                  "], or Float probabilities [", count, ", ", num_classes, "].");
    copy_probabilities(target, rows);
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

struct Sides {
  int64_t begin;
  int64_t end;
};

/// Returns `part` of `side`, around a random centre and cut off at the image's edges.
Sides random_sides(SampleRandom& random, int64_t side, double part) {
  const auto length = static_cast<int64_t>(static_cast<double>(side) * part);
  const int64_t begin = random.below(side) - length / 2;
  return {std::max<int64_t>(begin, 0), std::min(begin + length, side)};
}

}  // namespace

Batch Mixing::operator()(Batch batch, const TransformContext& context) const {
  const char* name = name_of(kind);
  const Images images(batch.input(), context);
  LINKBOY_CHECK(kind == RandomKind::cutmix || !images.is_bytes(),
                "mixup: the images are uint8; they must be float. Put normalise before it.");
  const at::Tensor target = probabilities_of(batch.target(), name, images.count, num_classes);
  const at::Tensor mixed_target = at::empty({images.count, num_classes}, at::kFloat);
  // A pass without stages only copies, on this thread.
  const at::Tensor source =
      images.tensor.is_contiguous() ? images.tensor : ImagePass()(images.tensor, context);
  const at::Tensor mixed =
      images.empty_like(images.height, images.width, images.tensor.scalar_type());

  const uint64_t key = random_key(context, {kind, occurrence});
  const int64_t image_size = images.channels * images.height * images.width;
  const float* target_rows = target.const_data_ptr<float>();
  float* mixed_rows = mixed_target.mutable_data_ptr<float>();
  const auto mix_sample = [&]<class T>(int64_t i, const T* all, T* out) {
    SampleRandom random(key, context.indices[i]);
    const bool is_mixed = random.chance(options.p);
    double weight = is_mixed ? random.beta(alpha) : 1.0;  // of the sample itself
    int64_t partner = i;
    if (is_mixed && images.count > 1) {
      partner = (i + 1 + random.below(images.count - 1)) % images.count;
    }
    const T* own_image = all + i * image_size;
    const T* partner_image = all + partner * image_size;
    if (partner == i) {
      weight = 1.0;
      std::copy_n(own_image, image_size, out);
    } else if (kind == RandomKind::mixup) {
      blend(own_image, partner_image, static_cast<float>(weight), image_size, out);
    } else {
      std::copy_n(own_image, image_size, out);
      const double part = std::sqrt(1.0 - weight);
      const Sides rows = random_sides(random, images.height, part);
      const Sides columns = random_sides(random, images.width, part);
      for (int64_t c = 0; c < images.channels; ++c) {
        for (int64_t y = rows.begin; y < rows.end; ++y) {
          const int64_t row = (c * images.height + y) * images.width;
          std::copy(partner_image + row + columns.begin, partner_image + row + columns.end,
                    out + row + columns.begin);
        }
      }
      const int64_t taken = (rows.end - rows.begin) * (columns.end - columns.begin);
      weight = 1.0 - static_cast<double>(taken) / static_cast<double>(images.height * images.width);
    }
    blend(target_rows + i * num_classes, target_rows + partner * num_classes,
          static_cast<float>(weight), num_classes, mixed_rows + i * num_classes);
  };
  for (int64_t i = 0; i < images.count; ++i) {
    if (images.is_bytes()) {
      mix_sample(i, source.const_data_ptr<uint8_t>(),
                 mixed.mutable_data_ptr<uint8_t>() + i * image_size);
    } else {
      mix_sample(i, source.const_data_ptr<float>(),
                 mixed.mutable_data_ptr<float>() + i * image_size);
    }
  }

  batch.set(std::string(batch.tensors()[0].first), mixed);
  batch.set(std::string(batch.tensors()[1].first), mixed_target);
  return batch;
}

}  // namespace linkboy
