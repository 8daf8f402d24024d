#pragma once

#include <torch/optim/optimizer.h>

#include "linkboy/callback.hpp"
#include "linkboy/checkpoint/state_dict.hpp"

namespace linkboy {

class Trainer;

/// What a trial run changes, to put it back: weights and buffers of the model and of the registered
/// modules, optimizers, accelerator, random numbers, run history, callbacks, the members of a
/// subclass. While it lives, the Trainer calls `callback` and the low_overhead_callbacks in place
/// of its own. A request to stop ends each trial; it is left to the next run if it was made before,
/// or is a `StopReason::stop_request`.
class RunSnapshot {
 public:
  /// @throws Error if the Trainer has no optimizer. @note Collective.
  RunSnapshot(Trainer& trainer, std::shared_ptr<Callback> callback);
  ~RunSnapshot();
  RunSnapshot(const RunSnapshot&) = delete;
  RunSnapshot& operator=(const RunSnapshot&) = delete;

  /// Puts everything back. May be called again, before another trial. @note Collective.
  void restore();

 private:
  Trainer& trainer_;
  CallbackHandler callbacks_;
  StateDict model_;
  std::vector<NamedTensors> modules_;  // of the registered modules: copies
  StateDict optimizer_;
  std::vector<StateDict> registered_optimizers_;
  StateDict accelerator_;
  StateDict grad_scaler_;
  StateDict members_;
  StateDict rng_;
  StateDict history_;
};

}  // namespace linkboy
