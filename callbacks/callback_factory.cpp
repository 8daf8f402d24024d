// The table of callbacks that command lines and config files can create by name.

#include "linkboy/callbacks/callback_factory.hpp"

#include <chrono>
#include <cstdint>
#include <memory>

#include "linkboy/callbacks/convert_sync_batch_norm.hpp"
#include "linkboy/callbacks/early_stopping.hpp"
#include "linkboy/callbacks/event_storage.hpp"
#include "linkboy/callbacks/fast_dev_run.hpp"
#include "linkboy/callbacks/gradient_norm.hpp"
#include "linkboy/callbacks/learning_rate_monitor.hpp"
#include "linkboy/callbacks/limit_batches.hpp"
#include "linkboy/callbacks/log_metrics.hpp"
#include "linkboy/callbacks/memory_monitor.hpp"
#include "linkboy/callbacks/model_ema.hpp"
#include "linkboy/callbacks/model_summary.hpp"
#include "linkboy/callbacks/move_modules_to_device.hpp"
#include "linkboy/callbacks/performance_monitor.hpp"
#include "linkboy/callbacks/precise_batch_norm.hpp"
#include "linkboy/callbacks/print_progress.hpp"
#include "linkboy/callbacks/profiler.hpp"
#include "linkboy/callbacks/progress_bar.hpp"
#include "linkboy/callbacks/save_best_model.hpp"
#include "linkboy/callbacks/save_checkpoint.hpp"
#include "linkboy/callbacks/save_predictions.hpp"
#include "linkboy/callbacks/save_training_state.hpp"
#include "linkboy/callbacks/step_based_evaluation.hpp"
#include "linkboy/callbacks/stochastic_weight_averaging.hpp"
#include "linkboy/callbacks/stop_on_signal.hpp"
#include "linkboy/callbacks/terminate_on_nan.hpp"
#include "linkboy/callbacks/time_limit.hpp"
#include "linkboy/util/make.hpp"
#include "linkboy/util/text_options.hpp"

namespace linkboy {
namespace {

using Callbacks = NamedFactory<std::shared_ptr<Callback>>;

struct NumBatches {
  /// Number of batches per loader and process. In code, the argument of the constructor. Must be at
  /// least 1.
  int64_t num_batches = 1;
  LINKBOY_FIELDS(num_batches);
};

std::shared_ptr<Callback> make_fast_dev_run(const NumBatches& text) {
  return make<FastDevRun>(text.num_batches);
}

}  // namespace

const Callbacks& callback_factory() {
  static const Callbacks all(
      "callback",
      {
          // Control
          Callbacks::of<EarlyStopping>("early-stopping"),
          Callbacks::of<TerminateOnNaN>("terminate-on-nan"),
          Callbacks::of<TimeLimit>("time-limit", {.max_time = std::chrono::milliseconds(0)}),
          Callbacks::of<StopOnSignal>("stop-on-signal"),
          Callbacks::of<LimitBatches>("limit-batches"),
          Callbacks::entry<FastDevRun, NumBatches>("fast-dev-run", make_fast_dev_run),
          Callbacks::of<StepBasedEvaluation>("step-based-evaluation"),
          Callbacks::of<ModelEma>("model-ema"),
          Callbacks::of<StochasticWeightAveraging>("stochastic-weight-averaging"),
          Callbacks::of<PreciseBatchNorm>("precise-batch-norm"),
          Callbacks::of<ConvertSyncBatchNorm>("convert-sync-batch-norm"),
          Callbacks::of<MoveModulesToDevice>("move-modules-to-device"),
          // Saving
          Callbacks::of<SaveBestModel>("save-best-model"),
          Callbacks::of<SaveTrainingState>("save-training-state"),
          Callbacks::of<SaveCheckpoint>("save-checkpoint"),
          Callbacks::of<LoadCheckpoint>("load-checkpoint"),
          Callbacks::of<SavePredictions>("save-predictions", {.path = ""}),
          // Monitoring
          Callbacks::of<LogMetrics>("log-metrics"),
          Callbacks::of<PrintProgress>("print-progress"),
          Callbacks::of<ProgressBar>("progress-bar"),
          Callbacks::of<LearningRateMonitor>("learning-rate-monitor"),
          Callbacks::of<GradientNorm>("gradient-norm"),
          Callbacks::of<EventStorage>("event-storage"),
          Callbacks::of<PerformanceMonitor>("performance-monitor"),
          Callbacks::of<MemoryMonitor>("memory-monitor"),
          Callbacks::of<ModelSummary>("model-summary"),
          Callbacks::of<Profiler>("profiler"),
      });
  return all;
}

}  // namespace linkboy
