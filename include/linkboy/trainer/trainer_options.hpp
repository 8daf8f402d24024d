#pragma once

#include <memory>

#include "linkboy/accelerator.hpp"
#include "linkboy/callback.hpp"
#include "linkboy/callbacks/default_callbacks.hpp"
#include "linkboy/metric.hpp"
#include "linkboy/run/run_history.hpp"

namespace linkboy {

/// Options of a Trainer, in addition to its model, loss function and optimizer.
struct TrainerOptions {
  /// Metrics that each evaluation records, by name: "accuracy" becomes `eval_accuracy`. For other
  /// outputs or targets, and for metrics of the training, add a MetricCallback instead.
  MetricCollection metrics{};
  /// Callbacks in addition to the default ones. One with the name of a default callback, such as
  /// `progress_bar({.mode = ProgressBarOptions::Mode::none})`, replaces it. All are called by phase
  /// and then in this order.
  CallbackList callbacks{};
  /// The default callbacks. `{}` leaves them out: such a Trainer does not print or monitor
  /// anything, and a NaN does not end its runs. `low_overhead_callbacks()` are a short list.
  CallbackList default_callbacks = linkboy::default_callbacks();
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
