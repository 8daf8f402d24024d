#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "linkboy/export.hpp"
#include "linkboy/run/options.hpp"

namespace linkboy {

class Trainer;

struct BatchSizeFinderOptions {
  /// The smallest size to try. At least 1.
  int64_t min_batch_size = 1;
  /// The largest size to try. A batch is never larger than the training data.
  int64_t max_batch_size = 65536;

  /// Updates of each trial; the first is not timed. At least 2.
  int64_t num_updates = 3;

  /// Sizes that need more count as too large: MiB of the CUDA device's memory that tensors take,
  /// or, on the CPU, of the process's resident memory. Positive. Without it what cannot be
  /// allocated is too large.
  std::optional<double> max_memory_mib{};
};

/// What came of one size.
struct BatchSizeTrial {
  /// Samples per batch and process.
  int64_t batch_size = 0;
  /// Whether its updates went through within the memory allowed.
  bool fits = false;
  /// Measured for a size that fits; 0 otherwise.
  double samples_per_second = 0.0;
  /// The highest that was seen before and after a forward pass, and after an update.
  double memory_mib = 0.0;
};

/// What find_batch_size has found.
struct BatchSizeFinderResult {
  /// In the order in which they were tried.
  std::vector<BatchSizeTrial> trials{};
  /// The largest size that fits; 0 if a stop ended the search before its first trial was complete.
  int64_t largest = 0;
  /// The one with the most samples per second; 0 as `largest`.
  int64_t fastest = 0;
};

/// Trains a few updates with each of several batch sizes, doubling until one does not fit and
/// halving the gap after that, and puts everything back as it was, as `find_learning_rate` does. A
/// stop that is requested ends the search with the trials that are complete, and, unless a trial
/// itself requested it for another reason than `StopReason::stop_request`, the next run.
///
/// @param options  As `Trainer::train` takes them; batch size, length, schedule and evaluation are
///        not looked at.
/// @throws Error if an option is out of its range, not even the smallest size fits, or there are
///         several processes: one that runs out of memory would leave the others waiting. Whatever
///         else training throws, with everything put back.
LINKBOY_API BatchSizeFinderResult find_batch_size(Trainer& trainer, TrainOptions options,
                                                  const BatchSizeFinderOptions& finder = {});

}  // namespace linkboy
