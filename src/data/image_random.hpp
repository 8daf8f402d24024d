#pragma once

#include <ATen/core/PhiloxRNGEngine.h>

#include <cmath>
#include <cstdint>
#include <numbers>
#include <string>
#include <utility>

#include "data/hash_pair.hpp"
#include "linkboy/data/data_loader.hpp"
#include "linkboy/error.hpp"

namespace linkboy {

/// The kind of a transform, which determines its random numbers. Each kind has different random
/// numbers, and so does each additional transform of the same kind in one `compose`. The values
/// must not change, because resumed runs depend on them.
enum class RandomKind : uint64_t { none, crop, flip, erasing, cutout, mixup, cutmix, resized_crop };

/// Maximum side of an image, and maximum padding. Sums of three such lengths stay below 2^32.
inline constexpr int64_t kMaxSide = int64_t{1} << 30;

/// @throws OptionError if `value` is not `least` to kMaxSide.
inline void check_length(const std::string& name, int64_t value, int64_t least) {
  LINKBOY_CHECK_OPTION(value >= least && value <= kMaxSide, name, " is ", value, "; it must be ",
                       least, " to ", kMaxSide, " pixels.");
}

/// @throws OptionError if the range of a ratio is not positive and finite.
inline void check_ratio(const char* name, const std::pair<double, double>& ratio) {
  LINKBOY_CHECK_OPTION(
      ratio.first > 0.0 && ratio.first <= ratio.second && std::isfinite(ratio.second), name, " is ",
      ratio.first, " to ", ratio.second,
      "; both must be above 0 and finite, the smaller value first.");
}

/// Returns the key of a transform's numbers in an epoch. The hash is nested, so that different
/// (seed, epoch, transform) cannot produce the same key by having the same sum.
/// @param occurrence  Number of earlier transforms of this kind.
inline uint64_t random_key(const TransformContext& context, RandomKind kind,
                           uint64_t occurrence = 0) {
  return mix(mix(context.seed, static_cast<uint64_t>(context.epoch)),
             static_cast<uint64_t>(kind) << 32 | occurrence);
}

/// The random numbers of one sample. Philox counts within (key, index): creating a generator costs
/// almost nothing, and different indices never share numbers.
class SampleRandom {
 public:
  SampleRandom(uint64_t key, int64_t index) : engine_(key, static_cast<uint64_t>(index)) {}

  /// Returns a multiple of 2^-32 in [0, 1).
  double uniform() { return engine_() * 0x1p-32; }

  double uniform(double from, double to) { return from + (to - from) * uniform(); }

  bool chance(double p) { return uniform() < p; }

  /// Returns a number in [0, count). `count` must be above 0 and below 2^32. The probabilities of
  /// two values differ by at most 2^-32.
  int64_t below(int64_t count) {
    return static_cast<int64_t>(engine_() * static_cast<uint64_t>(count) >> 32);
  }

  /// Returns a standard normal number. The Box-Muller method makes two at a time.
  double normal() {
    if (has_spare_normal_) {
      has_spare_normal_ = false;
      return spare_normal_;
    }
    const double radius = std::sqrt(-2.0 * std::log(positive_uniform()));
    const double angle = 2.0 * std::numbers::pi * uniform();
    spare_normal_ = radius * std::sin(angle);
    has_spare_normal_ = true;
    return radius * std::cos(angle);
  }

  /// Returns a number from Beta(alpha, alpha). `alpha` must be positive.
  double beta(double alpha) {
    // Uses logarithms, because with a small alpha both gamma variates are too small for a double.
    const double a = log_gamma_variate(alpha);
    const double b = log_gamma_variate(alpha);
    return 1.0 / (1.0 + std::exp(b - a));
  }

 private:
  /// Returns a number in (0, 1).
  double positive_uniform() { return (engine_() + 0.5) * 0x1p-32; }

  /// Returns the logarithm of a number from Gamma(shape, 1), with Marsaglia and Tsang's method. It
  /// needs a shape of at least 1; for smaller shapes, G(shape) = G(shape + 1) * U^(1 / shape).
  double log_gamma_variate(double shape) {
    if (shape < 1.0) {
      const double boost = std::log(positive_uniform()) / shape;
      return log_gamma_variate(shape + 1.0) + boost;
    }
    const double d = shape - 1.0 / 3.0;
    const double c = 1.0 / std::sqrt(9.0 * d);
    while (true) {
      const double x = normal();
      const double root = 1.0 + c * x;
      if (root <= 0.0) continue;
      const double v = root * root * root;
      if (std::log(positive_uniform()) < 0.5 * x * x + d - d * v + d * std::log(v)) {
        return std::log(d * v);
      }
    }
  }

  at::Philox4_32 engine_;
  double spare_normal_ = 0.0;
  bool has_spare_normal_ = false;
};

}  // namespace linkboy
