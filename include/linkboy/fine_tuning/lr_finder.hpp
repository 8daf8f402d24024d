#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "linkboy/export.hpp"
#include "linkboy/run/options.hpp"

namespace linkboy {

class Trainer;

struct LrFinderOptions {
  /// The learning rate of the first update. It grows by a constant factor with each update. Must be
  /// positive.
  double start_lr = 1e-7;
  /// The learning rate of the last update. Must be greater than `start_lr`.
  double end_lr = 10.0;

  /// Number of updates. Must be at least 2.
  int64_t num_updates = 100;

  /// Smoothing factor of the losses: the weight of a loss in a mean decreases by this factor per
  /// update of distance. `smoothed_losses` are means of the current and earlier losses; for
  /// `suggestion`, the means extend in both directions. Must be in [0, 1).
  double smoothing = 0.95;

  /// The search ends when the smoothed loss exceeds `divergence_factor` times the lowest smoothed
  /// loss so far. If the lowest one is not positive, the search ends when the smoothed loss has
  /// risen above it by more than `divergence_factor - 1` times the larger of its absolute value and
  /// the decrease so far. A NaN or infinite loss ends the search, too. Must be greater than 1.
  double divergence_factor = 4.0;
};

/// The result of `find_learning_rate`.
struct LrFinderResult {
  /// The learning rate of each update; with several param groups, the largest one.
  std::vector<double> learning_rates{};
  /// The loss before each update, averaged over all processes.
  std::vector<double> losses{};
  /// The weighted means of the losses so far, with weights that decay by `smoothing`. They lag
  /// behind the losses, by about 20 updates with a `smoothing` of 0.95.
  std::vector<double> smoothed_losses{};

  /// A good learning rate to start from: the one at which the loss falls fastest, relative to the
  /// logarithm of the learning rate. Not set if the loss never falls. To compute it, the losses are
  /// limited to the largest one at the beginning and then smoothed in both directions, which avoids
  /// the lag.
  std::optional<double> suggestion{};
};

/// Trains with a growing learning rate until the loss diverges or `num_updates` is reached. Then
/// restores everything: weights, optimizer, random numbers, run history and what the Trainer knows
/// of its previous run, which can be saved afterwards. With several param groups, the ratios of
/// their learning rates stay the same. The Trainer's callbacks are not called. The search calls
/// `DataLoader::peek`, so it takes no batches of a single stream from the training; every epoch of
/// the search has the same batches of such a stream. A stop request ends the search. It also ends
/// the next run if it was made before the search or its reason is `StopReason::stop_request`. A
/// request for another reason during the search, such as a NaN, ends only the search.
///
/// @param options  The options of `Trainer::train`. Length, schedule, evaluation, `resume_from` and
///        `callbacks` are ignored.
/// @throws OptionError if an option is out of range; Error if all learning rates of the optimizer
///         are 0; any error from training. Everything is restored first.
/// @note Collective.
LINKBOY_API LrFinderResult find_learning_rate(Trainer& trainer, TrainOptions options,
                                              const LrFinderOptions& finder = {});

}  // namespace linkboy
