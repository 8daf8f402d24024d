// The callbacks of a Trainer whose options do not list any, and the shorter list for speed.

#include "linkboy/callbacks/default_callbacks.hpp"

#include "linkboy/callbacks/log_metrics.hpp"
#include "linkboy/callbacks/move_modules_to_device.hpp"
#include "linkboy/callbacks/print_progress.hpp"
#include "linkboy/callbacks/progress_bar.hpp"
#include "linkboy/callbacks/terminate_on_nan.hpp"

namespace linkboy {

CallbackList default_callbacks(CallbackList more) {
  CallbackList callbacks{std::make_shared<MoveModulesToDevice>(),
                         std::make_shared<TerminateOnNaN>(), std::make_shared<PrintProgress>(),
                         std::make_shared<ProgressBar>(), std::make_shared<LogMetrics>()};
  callbacks.insert(callbacks.end(), more.begin(), more.end());
  return callbacks;
}

CallbackList low_overhead_callbacks(CallbackList more) {
  more.insert(more.begin(), std::make_shared<MoveModulesToDevice>());
  return more;
}

}  // namespace linkboy
