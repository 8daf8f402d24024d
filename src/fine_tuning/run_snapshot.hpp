#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "accelerator/trained_optimizer.hpp"
#include "linkboy/callback.hpp"
#include "linkboy/checkpoint/state_dict.hpp"
#include "linkboy/model.hpp"
#include "linkboy/run/options.hpp"
#include "linkboy/run/train_result.hpp"

namespace linkboy {

class Trainer;
struct RunState;

/// The state that a trial run changes and that is restored after it: weights and buffers of the
/// model and of the registered modules, optimizers, accelerator, random numbers, run history and
/// the members of a subclass. While it exists, the Trainer calls `callback` and the
/// low_overhead_callbacks instead of its own callbacks, and its run is that of the trial;
/// afterwards, the previous run, its schedules and the modes of the modules (training or
/// evaluation) are back. A stop request ends each trial. It also remains in force for the next run
/// if it was made before the trial or is a `StopReason::stop_request`.
class RunSnapshot {
 public:
  /// @throws OptionError if the Trainer does not have an optimizer.
  /// @note Collective.
  RunSnapshot(Trainer& trainer, std::shared_ptr<Callback> callback);
  ~RunSnapshot();
  RunSnapshot(const RunSnapshot&) = delete;
  RunSnapshot& operator=(const RunSnapshot&) = delete;

  /// Trains with these options. Restores everything before it returns or throws.
  /// @throws Any error of `train`; Error if something cannot be restored.
  /// @note Collective.
  TrainResult trial(const TrainOptions& options);

 private:
  void restore();
  /// Exchanges the Trainer's run and the schedules of its optimizers for those kept here.
  void exchange_run();
  /// A trial starts from the same base values as the next run.
  void begin_trial();

  Trainer& trainer_;
  ModelModeGuard restore_modes_;
  CallbackHandler callbacks_;
  std::size_t num_registered_modules_;                 // a trial may register others
  std::unique_ptr<RunState> run_;                      // before the trials
  std::vector<TrainedOptimizer::Schedule> schedules_;  // before the trials
  StateDict modules_;
  std::vector<StateDict> optimizers_;
  StateDict accelerator_;
  StateDict grad_scaler_;
  StateDict members_;
  StateDict rng_;
  StateDict history_;
};

/// Returns the options for a trial of `num_updates` updates: without a schedule, an evaluation, a
/// state to resume or callbacks.
TrainOptions trial_options(TrainOptions options, int64_t num_updates);

}  // namespace linkboy
