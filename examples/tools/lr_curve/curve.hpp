#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <linkboy/scheduler.hpp>

namespace lr_curve {

/// The values of one field of a param group, one per update.
struct Curve {
  std::string field;
  /// values[k - 1] is the value for update k. Never empty.
  std::vector<double> values;
};

/// Returns a curve for each field that `scheduler` sets in the first param group, for the first
/// `num_updates` updates.
/// @throws linkboy::Error if a value is not valid in a run.
std::vector<Curve> sample(const linkboy::Scheduler& scheduler, int64_t num_updates);

/// Returns a line such as "lr: first 1e-06, highest 0.003 at update 235, lowest 1e-06 at update 1,
/// last 1.3e-05".
std::string summary(const Curve& curve);

}  // namespace lr_curve
