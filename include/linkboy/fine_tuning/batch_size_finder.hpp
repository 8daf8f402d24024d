#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "linkboy/export.hpp"
#include "linkboy/run/options.hpp"

namespace linkboy {

class Trainer;

struct BatchSizeFinderOptions {
  /// The smallest size to try. Must be at least 1. A size of 1 is skipped if BatchNorm layers need
  /// more values per channel.
  int64_t min_batch_size = 1;
  /// The largest size to try. Must be at least `min_batch_size`. A batch is never larger than the
  /// training data.
  int64_t max_batch_size = 65536;

  /// Number of updates in each trial; the first one is not timed. Must be at least 2.
  int64_t num_updates = 3;

  /// Memory limit in MiB. It applies to the peak tensor memory on a CUDA device, and to the
  /// process's resident memory on the CPU. Must be positive. If not set, a size is too large only
  /// if its memory cannot be allocated.
  std::optional<double> max_memory_mib{};
};

/// The result of one trial.
struct BatchSizeTrial {
  /// Samples per batch and process.
  int64_t batch_size = 0;
  /// Whether all updates completed within the allowed memory.
  bool fits = false;
  /// Training speed if the size fits; otherwise 0.
  double samples_per_second = 0.0;
  /// The highest memory use, in MiB, that was measured before and after each forward pass and after
  /// each update.
  double memory_mib = 0.0;
};

/// The result of `find_batch_size`.
struct BatchSizeFinderResult {
  /// The trials, in the order in which they ran.
  std::vector<BatchSizeTrial> trials{};
  /// The largest size that fits, of those tried; 0 if a stop request ended the search before the
  /// first trial was complete.
  int64_t largest = 0;
  /// The size with the most samples per second; 0 in the same case as `largest`.
  int64_t fastest = 0;
};

/// Trains for a few updates with each of several batch sizes. Doubles the size until one does not
/// fit. Then bisects the range between the largest size that fits and the smallest one that does
/// not, until it is at most an eighth of the size that fits. Restores everything afterwards, as
/// `find_learning_rate` does. A stop request ends the search; the result then contains the
/// completed trials. The request also ends the next run, unless a trial itself made the request for
/// a reason other than `StopReason::stop_request`.
///
/// @param options  The options of `Trainer::train`. Batch size, length, schedule, evaluation,
///        `resume_from` and `callbacks` are ignored.
/// @throws OptionError if an option is out of range, or if `options` has a `batch_sampler` or does
///         not have a `train_dataset`; Error if even the smallest size does not fit, or if there
///         are several processes (a process that ran out of memory would leave the others waiting);
///         any error from training. Everything is restored first.
LINKBOY_API BatchSizeFinderResult find_batch_size(Trainer& trainer, TrainOptions options,
                                                  const BatchSizeFinderOptions& finder = {});

}  // namespace linkboy
