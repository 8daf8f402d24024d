// The default callbacks of a Trainer, and the shorter list for speed.

#include "linkboy/callbacks/default_callbacks.hpp"

#include "linkboy/callbacks/log_metrics.hpp"
#include "linkboy/callbacks/metric_callback.hpp"
#include "linkboy/callbacks/move_modules_to_device.hpp"
#include "linkboy/callbacks/print_progress.hpp"
#include "linkboy/callbacks/progress_bar.hpp"
#include "linkboy/callbacks/terminate_on_nan.hpp"

namespace linkboy {

CallbackList default_callbacks() {
  return {std::make_shared<MoveModulesToDevice>(), std::make_shared<TerminateOnNaN>(),
          std::make_shared<PrintProgress>(), std::make_shared<ProgressBar>(),
          std::make_shared<LogMetrics>()};
}

CallbackList low_overhead_callbacks() { return {std::make_shared<MoveModulesToDevice>()}; }

CallbackList detail::callbacks_of(const MetricCollection& metrics) {
  if (metrics.metrics().empty()) return {};
  return {std::make_shared<MetricCallback>(metrics)};
}

}  // namespace linkboy
