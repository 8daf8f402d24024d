#pragma once

#include "linkboy/callback.hpp"
#include "linkboy/export.hpp"

namespace linkboy {

class MetricCollection;

/// Returns MoveModulesToDevice, TerminateOnNaN, PrintProgress, ProgressBar and LogMetrics.
LINKBOY_API CallbackList default_callbacks();

/// Returns MoveModulesToDevice. A run with only this callback does not print or monitor anything,
/// which saves time, and a NaN does not end the run.
[[nodiscard]] LINKBOY_API CallbackList low_overhead_callbacks();

namespace detail {

/// Returns a MetricCallback, or an empty list without metrics.
CallbackList callbacks_of(const MetricCollection& metrics);

}  // namespace detail

}  // namespace linkboy
