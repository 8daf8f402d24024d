#pragma once

#include "linkboy/callback.hpp"
#include "linkboy/export.hpp"

namespace linkboy {

/// Returns MoveModulesToDevice, TerminateOnNaN, PrintProgress, ProgressBar and LogMetrics, then
/// `more`. A Trainer has these callbacks unless it is given others.
LINKBOY_API CallbackList default_callbacks(CallbackList more = {});

/// Returns MoveModulesToDevice, then `more`: a run that watches nothing, prints nothing and spends
/// nothing on it. A NaN does not end it.
LINKBOY_API CallbackList low_overhead_callbacks(CallbackList more = {});

}  // namespace linkboy
