// The table of callbacks that command lines and config files can create by name.

#include "linkboy/callbacks/callback_factory.hpp"

#include <chrono>

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
#include "linkboy/error.hpp"
#include "linkboy/util/required.hpp"

namespace linkboy {
namespace {

using Callbacks = NamedFactory<std::shared_ptr<Callback>>;

struct NoOptions {
  void visit_fields(const auto&) {}
};

struct NumBatches {
  /// Number of batches per loader and process. In code, the argument of the constructor. Must be at
  /// least 1.
  int64_t num_batches = 1;
  LINKBOY_FIELDS(num_batches);
};

struct MaxTime {
  /// Sets `max_time` in text. Must be above 0.
  Required<double> minutes;
  LINKBOY_FIELDS(minutes);
};

template <class C, class Options = typename C::Options>
Callbacks::Entry entry(const char* name, Options options = {}) {
  return Callbacks::entry<Options>(
      name, [](const Options& chosen) { return make<C>(chosen); }, std::move(options));
}

template <class C>
requires(!requires { typename C::Options; }) Callbacks::Entry entry(const char* name) {
  return Callbacks::entry<NoOptions>(name, [](const NoOptions&) { return make<C>(); });
}

std::shared_ptr<Callback> make_time_limit(const MaxTime& time) {
  constexpr double kMost = 1e9;  // 1900 years, which fit into std::chrono::milliseconds
  LINKBOY_CHECK_OPTION(time.minutes > 0.0 && time.minutes <= kMost, "the time-limit's minutes is ",
                       time.minutes, "; it must be above 0 and at most ", kMost, ".");
  const std::chrono::duration<double, std::ratio<60>> minutes(time.minutes);
  return make<TimeLimit>(
      {.max_time = std::chrono::duration_cast<std::chrono::milliseconds>(minutes)});
}

std::shared_ptr<Callback> make_fast_dev_run(const NumBatches& text) {
  return make<FastDevRun>(text.num_batches);
}

const Callbacks& callbacks() {
  static const Callbacks all(
      "callback", {
                      // Control
                      entry<EarlyStopping>("early-stopping"),
                      entry<TerminateOnNaN>("terminate-on-nan"),
                      Callbacks::entry<MaxTime>("time-limit", make_time_limit, {.minutes = 0.0}),
                      entry<StopOnSignal>("stop-on-signal"),
                      entry<LimitBatches>("limit-batches"),
                      Callbacks::entry<NumBatches>("fast-dev-run", make_fast_dev_run),
                      entry<StepBasedEvaluation>("step-based-evaluation"),
                      entry<ModelEma>("model-ema"),
                      entry<StochasticWeightAveraging>("stochastic-weight-averaging"),
                      entry<PreciseBatchNorm>("precise-batch-norm"),
                      entry<ConvertSyncBatchNorm>("convert-sync-batch-norm"),
                      entry<MoveModulesToDevice>("move-modules-to-device"),
                      // Saving
                      entry<SaveBestModel>("save-best-model"),
                      entry<SaveTrainingState>("save-training-state"),
                      entry<SaveCheckpoint>("save-checkpoint"),
                      entry<LoadCheckpoint>("load-checkpoint"),
                      entry<SavePredictions>("save-predictions", {.path = ""}),
                      // Monitoring
                      entry<LogMetrics>("log-metrics"),
                      entry<PrintProgress>("print-progress"),
                      entry<ProgressBar>("progress-bar"),
                      entry<LearningRateMonitor>("learning-rate-monitor"),
                      entry<GradientNorm>("gradient-norm"),
                      entry<EventStorage>("event-storage"),
                      entry<PerformanceMonitor>("performance-monitor"),
                      entry<MemoryMonitor>("memory-monitor"),
                      entry<ModelSummary>("model-summary"),
                      entry<Profiler>("profiler"),
                  });
  return all;
}

}  // namespace

std::shared_ptr<Callback> make_callback(const std::string& name, const TextSettings& settings) {
  return callbacks().make(name, settings);
}

std::vector<std::string> callback_names() { return callbacks().names(); }

TextSettings callback_options(const std::string& name) { return callbacks().find(name).options; }

}  // namespace linkboy
