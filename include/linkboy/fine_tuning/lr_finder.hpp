#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "linkboy/export.hpp"
#include "linkboy/run/options.hpp"

namespace linkboy {

class Trainer;

struct LrFinderOptions {
  /// Where the learning rate starts; it grows by the same factor each update. Positive.
  double start_lr = 1e-7;
  /// Where it ends. Positive.
  double end_lr = 10.0;

  /// At least 2.
  int64_t num_updates = 100;

  /// Weight of the losses before in the smoothed loss, and of the neighbours on both sides where
  /// the suggestion is found; in [0, 1).
  double smoothing = 0.95;

  /// The search ends when the smoothed loss is so many times the lowest so far. If the lowest is
  /// negative: when it has risen by `divergence_factor - 1` times the size of the lowest, or of the
  /// fall so far if that is larger. Above 1.
  double divergence_factor = 4.0;
};

/// What find_learning_rate has found.
struct LrFinderResult {
  /// The largest param group's learning rate, of each update.
  std::vector<double> learning_rates{};
  /// The loss before each update, over all processes.
  std::vector<double> losses{};
  /// The mean of the losses so far, with weights that fall by `smoothing`. It lags behind the
  /// losses: with 0.95, by about 20 updates.
  std::vector<double> smoothed_losses{};

  /// Where the loss falls fastest over the logarithm of the learning rate; nothing if it never
  /// falls. The loss is smoothed over both sides, so that it does not lag, and cut at its height of
  /// the beginning. A good place to start from.
  std::optional<double> suggestion{};
};

/// Trains with a learning rate that grows until the loss diverges, and puts everything back as it
/// was: weights, optimizer, random numbers, run history. Runs with several param groups keep the
/// ratios of their rates. None of the Trainer's callbacks is called. Until the next run,
/// `Trainer::scheduler` and `Trainer::result` are those of the search. A stop that is requested
/// before the search, or as `StopReason::stop_request` during it, ends the search and the next run;
/// one for another reason, such as a NaN, ends the search alone.
///
/// @param options  As `Trainer::train` takes them; length, schedule and evaluation are not looked
///        at.
/// @throws Error if an option is out of its range, or the optimizer's learning rates are all 0;
///         whatever training throws, with everything put back.
/// @note Collective.
LINKBOY_API LrFinderResult find_learning_rate(Trainer& trainer, TrainOptions options,
                                              const LrFinderOptions& finder = {});

}  // namespace linkboy
