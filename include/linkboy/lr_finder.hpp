#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "linkboy/export.hpp"
#include "linkboy/options.hpp"

namespace linkboy {

class Trainer;

struct LrFinderOptions {
  /// Where the learning rate starts; it grows by the same factor each update. Positive.
  double start_lr = 1e-7;
  /// Where it ends. Positive.
  double end_lr = 10.0;

  /// At least 2.
  int64_t num_updates = 100;

  /// Weight of the losses before in the smoothed loss; in [0, 1).
  double smoothing = 0.95;

  /// The search ends when the smoothed loss is so many times the lowest so far. Above 1.
  double divergence_factor = 4.0;
};

/// What find_learning_rate has found.
struct LrFinderResult {
  /// The largest param group's learning rate, of each update.
  std::vector<double> learning_rates{};
  /// The loss before each update, over all processes.
  std::vector<double> losses{};
  /// The same, smoothed.
  std::vector<double> smoothed_losses{};

  /// Where the smoothed loss falls fastest, over the logarithm of the learning rate; nothing if it
  /// never falls. A good place to start from; a third of the rate at the lowest loss is another.
  std::optional<double> suggestion{};
};

/// Trains with a learning rate that grows until the loss diverges, and puts everything back as it
/// was: weights, optimizer, random numbers, run history. Runs with several param groups keep the
/// ratios of their rates. None of the Trainer's callbacks is called.
///
/// @param options  As `Trainer::train` takes them; length, schedule and evaluation are not looked
///        at.
/// @throws Error if an option is out of its range, or the optimizer's learning rates are all 0;
///         whatever training throws, with everything put back.
/// @note Collective.
LINKBOY_API LrFinderResult find_learning_rate(Trainer& trainer, TrainOptions options,
                                              const LrFinderOptions& finder = {});

}  // namespace linkboy
