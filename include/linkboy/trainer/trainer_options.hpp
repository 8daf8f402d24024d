#pragma once

#include <memory>

#include "linkboy/accelerator.hpp"
#include "linkboy/callback.hpp"
#include "linkboy/callbacks/default_callbacks.hpp"
#include "linkboy/run/run_history.hpp"

namespace linkboy {

/// What a Trainer is made with, beside its model, loss and optimizer.
struct TrainerOptions {
  /// Called in this order.
  CallbackList callbacks = default_callbacks();
  /// Null for an InMemoryRunHistory.
  std::shared_ptr<RunHistory> run_history{};
  /// Device, precision and processes.
  AcceleratorOptions accelerator{};
  /// If it is not null, the Trainer uses this Accelerator and does not read `accelerator`. Set
  /// `DistributedOptions::gradient_as_bucket_view` in it, as the Trainer does in its own. Several
  /// Trainers may share it if they do not train at the same time.
  std::shared_ptr<Accelerator> shared_accelerator{};
};

}  // namespace linkboy
