#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>

#include "linkboy/run/stop_training.hpp"

namespace linkboy {

/// How a training run ended.
struct TrainResult {
  /// `finished` if all epochs were run.
  StopReason reason = StopReason::finished;
  /// The reason in words; empty for `finished`.
  std::string message;
  /// Epochs completed in this run, those before a resume included.
  int64_t num_epochs = 0;
  /// Updates made in this run, those before a resume included.
  int64_t num_updates = 0;
};

/// The latest value of each metric by name.
using Metrics = std::map<std::string, double, std::less<>>;

}  // namespace linkboy
