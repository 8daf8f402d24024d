#pragma once

#include <memory>

#include "linkboy/accelerator.hpp"
#include "linkboy/callback.hpp"
#include "linkboy/callbacks/default_callbacks.hpp"
#include "linkboy/run/run_history.hpp"

namespace linkboy {

/// Options of a Trainer, in addition to its model, loss function and optimizer.
struct TrainerOptions {
  /// The callbacks, called by phase and then in this order.
  CallbackList callbacks = default_callbacks();
  /// The run history. If it is null, the Trainer uses an InMemoryRunHistory.
  std::shared_ptr<RunHistory> run_history{};
  /// Device, precision and process options.
  AcceleratorOptions accelerator{};
  /// If not null, the Trainer uses this Accelerator and ignores `accelerator`. Set
  /// `DistributedOptions::gradient_as_bucket_view` in it, as the Trainer does for its own
  /// Accelerator. Several Trainers may share it if they do not train at the same time.
  std::shared_ptr<Accelerator> shared_accelerator{};
};

}  // namespace linkboy
