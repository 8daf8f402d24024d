#pragma once

#include <cstdint>
#include <linkboy/scheduler.hpp>
#include <string>
#include <vector>

namespace lr_curve {

/// The values of one field of a param group, update by update.
struct Curve {
  std::string field;
  /// values[k - 1] is what update k uses; never empty.
  std::vector<double> values;
};

/// All that `scheduler` sets in the first param group in the first `num_updates` updates.
/// @throws linkboy::Error if a value is one that a run would refuse.
std::vector<Curve> sample(const linkboy::Scheduler& scheduler, int64_t num_updates);

/// "lr: first 1e-06, highest 0.003 at update 235, lowest 1e-06 at update 1, last 1.3e-05".
std::string summary(const Curve& curve);

}  // namespace lr_curve
