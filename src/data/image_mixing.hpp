#pragma once

#include <cstdint>

#include "data/image_random.hpp"
#include "linkboy/data/image_transforms.hpp"

namespace linkboy {

/// mixup or cutmix, with options that have been checked.
struct Mixing {
  Batch operator()(Batch batch, const TransformContext& context) const;

  RandomKind kind;
  double alpha;
  int64_t num_classes;
  MixOptions options;
  uint64_t occurrence = 0;
};

}  // namespace linkboy
