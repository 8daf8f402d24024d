#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "linkboy/export.hpp"
#include "linkboy/run/options.hpp"

namespace linkboy {

class Trainer;

struct LrFinderOptions {
  /// The first learning rate. It grows by the same factor with each update. Must be positive.
  double start_lr = 1e-7;
  /// The last learning rate. Must be greater than `start_lr`.
  double end_lr = 10.0;

  /// Number of updates. Must be at least 2.
  int64_t num_updates = 100;

  /// Factor by which the weight of a loss in a mean decreases with each update of distance:
  /// backwards for `smoothed_losses`, and in both directions for `suggestion`. Must be in [0, 1).
  double smoothing = 0.95;

  /// The search ends when the smoothed loss is more than this many times the lowest one so far. If
  /// the lowest one is not positive, the search ends when the smoothed loss has risen above it by
  /// more than `divergence_factor - 1` times its absolute value, or times the fall so far if that
  /// is larger. A NaN or infinite loss also ends the search. Must be greater than 1.
  double divergence_factor = 4.0;
};

/// The result of `find_learning_rate`.
struct LrFinderResult {
  /// The learning rate of each update. With several param groups, the largest of theirs.
  std::vector<double> learning_rates{};
  /// The loss before each update, averaged over all processes.
  std::vector<double> losses{};
  /// The mean of the losses so far, with weights that decay by `smoothing`. It lags behind the
  /// losses: with 0.95, by about 20 updates.
  std::vector<double> smoothed_losses{};

  /// The learning rate at which the loss falls fastest over the logarithm of the learning rate; not
  /// set if the loss never falls. For this purpose, the loss is smoothed in both directions, so
  /// that it does not lag, and limited to its largest value at the beginning. The suggestion is a
  /// good starting point.
  std::optional<double> suggestion{};
};

/// Trains with a learning rate that grows until the loss diverges. Afterwards restores everything:
/// weights, optimizer, random numbers and run history. With several param groups, the ratios of
/// their rates stay the same. The Trainer's callbacks are not called. Until the next run,
/// `Trainer::scheduler` and `Trainer::result` are those of the search. A stop request ends the
/// search and the next run if it was made before the search, or during it with
/// `StopReason::stop_request`. A request for another reason, such as a NaN, ends only the search.
///
/// @param options  The options of `Trainer::train`. Length, schedule, evaluation, `resume_from` and
///        `callbacks` are ignored.
/// @throws Error if an option is out of range or all learning rates of the optimizer are 0; any
///         error of the training. Everything is restored first.
/// @note Collective.
LINKBOY_API LrFinderResult find_learning_rate(Trainer& trainer, TrainOptions options,
                                              const LrFinderOptions& finder = {});

}  // namespace linkboy
