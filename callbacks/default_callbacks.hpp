#pragma once

#include "linkboy/callback.hpp"
#include "linkboy/export.hpp"

namespace linkboy {

/// Returns MoveModulesToDevice, TerminateOnNaN, PrintProgress, ProgressBar and LogMetrics, followed
/// by `more`. A Trainer uses these callbacks if its options do not list others.
LINKBOY_API CallbackList default_callbacks(CallbackList more = {});

/// Returns MoveModulesToDevice, followed by `more`. Without `more`, a run does not print or monitor
/// anything, which saves time, and a NaN does not end the run.
LINKBOY_API CallbackList low_overhead_callbacks(CallbackList more = {});

}  // namespace linkboy
