#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>

#include "linkboy/run/stop_training.hpp"

namespace linkboy {

/// Outcome of a training run.
struct TrainResult {
  /// Why the run ended: `finished` if it completed all epochs.
  StopReason reason = StopReason::finished;
  /// The reason in words; empty for `finished`.
  std::string message;
  /// Number of complete epochs in this run, including those before a resume.
  int64_t num_epochs = 0;
  /// Number of updates in this run, including those before a resume.
  int64_t num_updates = 0;
};

/// The latest value of each metric by name.
using Metrics = std::map<std::string, double, std::less<>>;

}  // namespace linkboy
