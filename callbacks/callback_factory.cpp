#include "linkboy/callbacks/callback_factory.hpp"

#include <chrono>
#include <filesystem>
#include <functional>
#include <optional>

#include "linkboy/callbacks/convert_sync_batch_norm.hpp"
#include "linkboy/callbacks/early_stopping.hpp"
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
#include "linkboy/callbacks/phase_timer.hpp"
#include "linkboy/callbacks/precise_batch_norm.hpp"
#include "linkboy/callbacks/print_progress.hpp"
#include "linkboy/callbacks/profiler.hpp"
#include "linkboy/callbacks/progress_bar.hpp"
#include "linkboy/callbacks/save_best_model.hpp"
#include "linkboy/callbacks/save_predictions.hpp"
#include "linkboy/callbacks/save_training_state.hpp"
#include "linkboy/callbacks/step_based_evaluation.hpp"
#include "linkboy/callbacks/stochastic_weight_averaging.hpp"
#include "linkboy/callbacks/stop_on_signal.hpp"
#include "linkboy/callbacks/terminate_on_nan.hpp"
#include "linkboy/callbacks/time_limit.hpp"
#include "linkboy/error.hpp"

namespace linkboy {

// Found by the type of the option; hence not in the namespace without a name.

static void read_text(const std::string& text, GradientNormParts& value) {
  using enum GradientNormParts;
  read_text_choice(text, value,
                   {{"none", none}, {"param_groups", param_groups}, {"modules", modules}});
}

static void read_text(const std::string& text, ProgressBarOptions::Mode& value) {
  using enum ProgressBarOptions::Mode;
  read_text_choice(text, value,
                   {{"automatic", automatic}, {"bar", bar}, {"plain", plain}, {"none", none}});
}

static void read_text(const std::string& text, StochasticWeightAveragingOptions::Annealing& value) {
  using enum StochasticWeightAveragingOptions::Annealing;
  read_text_choice(text, value, {{"cosine", cosine}, {"linear", linear}});
}

static void read_text(const std::string& text, std::vector<ParamGroupField>& values) {
  values.clear();
  for (const std::string& name : split_at('+', text)) read_text(name, values.emplace_back());
}

namespace {

struct Entry {
  std::string name;
  std::vector<std::string> keys;
  std::function<std::shared_ptr<Callback>(const TextSettings&)> make;
};

/// A callback that is made from something else than an aggregate of options.
template <class Options>
Entry entry_of(std::string name, std::vector<TextOption<Options>> options,
               std::function<std::shared_ptr<Callback>(const Options&)> make) {
  std::vector<std::string> keys = keys_of(options);
  auto from_text = [name, options = std::move(options),
                    make = std::move(make)](const TextSettings& settings) {
    return make(options_from_text("callback " + name, options, settings));
  };
  return {std::move(name), std::move(keys), std::move(from_text)};
}

template <class C, class Options>
Entry entry(std::string name, std::vector<TextOption<Options>> options) {
  return entry_of<Options>(std::move(name), std::move(options),
                           [](const Options& values) { return std::make_shared<C>(values); });
}

template <class C>
Entry entry(std::string name) {
  struct None {};
  return entry_of<None>(std::move(name), {}, [](const None&) { return std::make_shared<C>(); });
}

struct NumBatches {
  int64_t num_batches = 1;
};

struct LimitEvalSteps {
  int64_t num_eval_steps = 1;
  bool limit_intermediate_only = true;
};

struct WsdCheckpoint {
  std::filesystem::path save_dir = "checkpoints";
  bool save_optimizer = true;
  bool save_scheduler = true;
  std::optional<std::filesystem::path> initial_checkpoint{};
};

struct MaxTime {
  double minutes = 0.0;
};

/// What had a class of its own in linkboy 0.1, under whose name training states have it.
template <class C, class Options>
std::shared_ptr<Callback> former(const char* name, const Options& options) {
  auto callback = std::make_shared<C>(options);
  callback->set_name(name);
  return callback;
}

template <class Member>
TextOption<ProfilerOptions> of_schedule(const char* name, Member ProfilerSchedule::*member) {
  return {name, [member](ProfilerOptions& options, const std::string& text) {
            read_text(text, options.schedule.*member);
          }};
}

template <class Rep, class Period>
TextOption<ProgressBarOptions> in_milliseconds(
    const char* name, std::chrono::duration<Rep, Period> ProgressBarOptions::*member) {
  return {name, [member](ProgressBarOptions& options, const std::string& text) {
            int64_t value = 0;
            read_text(text, value);
            options.*member = std::chrono::milliseconds(value);
          }};
}

std::vector<Entry> steering_callbacks() {
  using Early = EarlyStoppingOptions;
  using Swa = StochasticWeightAveragingOptions;
  using Ema = ModelEmaOptions;
  return {
      entry<EarlyStopping, Early>("early-stopping",
                                  {{"early_stopping_patience", &Early::early_stopping_patience},
                                   {"early_stopping_threshold", &Early::early_stopping_threshold},
                                   {"is_threshold_relative", &Early::is_threshold_relative},
                                   {"num_warmup_epochs", &Early::num_warmup_epochs},
                                   {"divergence_bound", &Early::divergence_bound},
                                   {"stop_at_non_finite", &Early::stop_at_non_finite},
                                   {"watch_metric", &Early::watch_metric},
                                   {"greater_is_better", &Early::greater_is_better},
                                   {"reset_on_train", &Early::reset_on_train}}),
      entry<TerminateOnNaN, TerminateOnNaNOptions>(
          "terminate-on-nan", {{"max_delay_steps", &TerminateOnNaNOptions::max_delay_steps},
                               {"defer_on_cpu", &TerminateOnNaNOptions::defer_on_cpu}}),
      entry_of<MaxTime>(
          "timer", {{"minutes", &MaxTime::minutes}},
          [](const MaxTime& time) {
            constexpr double kMost = 1e9;  // 1900 years: milliseconds can count them
            LINKBOY_CHECK(time.minutes > 0.0 && time.minutes <= kMost, "the timer's minutes is ",
                          time.minutes, "; it must be above 0 and at most ", kMost, ".");
            const std::chrono::duration<double, std::ratio<60>> minutes(time.minutes);
            using std::chrono::milliseconds;
            return make<TimeLimit>({.max_time = std::chrono::duration_cast<milliseconds>(minutes)});
          }),
      entry<StopOnSignal>("stop-on-signal"),
      entry<LimitBatches, LimitBatchesOptions>(
          "limit-batches",
          {{"num_train_batches", &LimitBatchesOptions::num_train_batches},
           {"num_eval_batches", &LimitBatchesOptions::num_eval_batches},
           {"num_intermediate_eval_batches", &LimitBatchesOptions::num_intermediate_eval_batches},
           {"are_eval_limits_total", &LimitBatchesOptions::are_eval_limits_total},
           {"repeat_first_epoch", &LimitBatchesOptions::repeat_first_epoch}}),
      entry_of<LimitEvalSteps>(
          "limit-eval-steps",
          {{"num_eval_steps", &LimitEvalSteps::num_eval_steps},
           {"limit_intermediate_only", &LimitEvalSteps::limit_intermediate_only}},
          [](const LimitEvalSteps& text) {
            LimitBatchesOptions options{.are_eval_limits_total = true};
            (text.limit_intermediate_only ? options.num_intermediate_eval_batches
                                          : options.num_eval_batches) = text.num_eval_steps;
            return former<LimitBatches>("linkboy::LimitEvalSteps", options);
          }),
      entry_of<NumBatches>("fast-dev-run", {{"num_batches", &NumBatches::num_batches}},
                           [](const NumBatches& options) {
                             return std::make_shared<FastDevRun>(options.num_batches);
                           }),
      entry_of<NumBatches>("overfit-batches", {{"num_batches", &NumBatches::num_batches}},
                           [](const NumBatches& text) {
                             return former<LimitBatches>(
                                 "linkboy::OverfitBatches",
                                 LimitBatchesOptions{.num_train_batches = text.num_batches,
                                                     .repeat_first_epoch = true});
                           }),
      entry<StepBasedEvaluation, StepBasedEvaluationOptions>(
          "step-based-evaluation",
          {{"eval_every_n_updates", &StepBasedEvaluationOptions::eval_every_n_updates}}),
      entry<ModelEma, Ema>("model-ema", {{"decay", &Ema::decay},
                                         {"warm_up", &Ema::warm_up},
                                         {"start_after", &Ema::start_after},
                                         {"every_n_updates", &Ema::every_n_updates},
                                         {"evaluate", &Ema::evaluate},
                                         {"save_path", &Ema::save_path},
                                         {"watch_metric", &Ema::watch_metric},
                                         {"greater_is_better", &Ema::greater_is_better},
                                         {"leave_in_model", &Ema::leave_in_model}}),
      entry<StochasticWeightAveraging, Swa>("stochastic-weight-averaging",
                                            {{"start_after", &Swa::start_after},
                                             {"every_n_updates", &Swa::every_n_updates},
                                             {"swa_lr", &Swa::swa_lr},
                                             {"num_annealing_updates", &Swa::num_annealing_updates},
                                             {"annealing", &Swa::annealing},
                                             {"update_batch_norm", &Swa::update_batch_norm},
                                             {"evaluate", &Swa::evaluate}}),
      entry<PreciseBatchNorm, PreciseBatchNormOptions>(
          "precise-batch-norm", {{"num_batches", &PreciseBatchNormOptions::num_batches},
                                 {"every_n_epochs", &PreciseBatchNormOptions::every_n_epochs}}),
      entry<ConvertSyncBatchNorm>("convert-sync-batch-norm"),
      entry<MoveModulesToDevice>("move-modules-to-device"),
  };
}

std::vector<Entry> saving_callbacks() {
  using Best = SaveBestModelOptions;
  using State = SaveTrainingStateOptions;
  using Wsd = WsdCheckpoint;
  using Predictions = SavePredictionsOptions;
  return {
      entry<SaveBestModel, Best>("save-best-model",
                                 {{"save_path", &Best::save_path},
                                  {"save_top_k", &Best::save_top_k},
                                  {"watch_metric", &Best::watch_metric},
                                  {"greater_is_better", &Best::greater_is_better},
                                  {"reset_on_train", &Best::reset_on_train},
                                  {"save_optimizer", &Best::save_optimizer},
                                  {"save_scheduler", &Best::save_scheduler},
                                  {"load_saved_checkpoint", &Best::load_saved_checkpoint}}),
      entry<SaveTrainingState, State>("save-training-state",
                                      {{"directory", &State::directory},
                                       {"every_n_updates", &State::every_n_updates},
                                       {"every_n_epochs", &State::every_n_epochs},
                                       {"every_n_minutes", &State::every_n_minutes},
                                       {"at_end", &State::at_end},
                                       {"at_decays",
                                        [](State& options, const std::string& text) {
                                          bool is_wanted = false;
                                          read_text(text, is_wanted);
                                          if (is_wanted) options.at_decays.emplace();
                                        }},
                                       {"initial_checkpoint", &State::initial_checkpoint},
                                       {"keep_last", &State::keep_last},
                                       {"asynchronous", &State::asynchronous}}),
      entry_of<Wsd>("wsd-checkpoint",
                    {{"save_dir", &Wsd::save_dir},
                     {"save_optimizer", &Wsd::save_optimizer},
                     {"save_scheduler", &Wsd::save_scheduler},
                     {"initial_checkpoint", &Wsd::initial_checkpoint}},
                    [](const Wsd& text) {
                      return former<SaveTrainingState>(
                          "linkboy::WsdCheckpoint",
                          State{.directory = text.save_dir,
                                .at_end = false,
                                .at_decays = DecaySaves{.save_optimizer = text.save_optimizer,
                                                        .save_scheduler = text.save_scheduler},
                                .initial_checkpoint = text.initial_checkpoint});
                    }),
      entry<SavePredictions, Predictions>("save-predictions",
                                          {{"path", &Predictions::path},
                                           {"outputs", &Predictions::outputs},
                                           {"argmax", &Predictions::argmax},
                                           {"targets", &Predictions::targets},
                                           {"every_n_epochs", &Predictions::every_n_epochs}}),
  };
}

std::vector<Entry> watching_callbacks() {
  using Bar = ProgressBarOptions;
  using Trace = ProfilerOptions;
  return {
      entry<LogMetrics, LogMetricsOptions>(
          "log-metrics", {{"every_n_epochs", &LogMetricsOptions::every_n_epochs}}),
      entry<PrintProgress>("print-progress"),
      entry<ProgressBar, Bar>("progress-bar",
                              {{"mode", &Bar::mode},
                               in_milliseconds("bar_interval", &Bar::bar_interval),
                               in_milliseconds("plain_interval", &Bar::plain_interval)}),
      entry<LearningRateMonitor, LearningRateMonitorOptions>(
          "learning-rate-monitor",
          {{"fields", &LearningRateMonitorOptions::fields},
           {"every_n_updates", &LearningRateMonitorOptions::every_n_updates}}),
      entry<GradientNorm, GradientNormOptions>("gradient-norm",
                                               {{"parts", &GradientNormOptions::parts}}),
      entry<PerformanceMonitor, PerformanceMonitorOptions>(
          "performance-monitor",
          {{"num_recent_updates", &PerformanceMonitorOptions::num_recent_updates},
           {"flops_per_sample", &PerformanceMonitorOptions::flops_per_sample}}),
      entry<PhaseTimer, PhaseTimerOptions>(
          "timing", {{"num_warmup_steps", &PhaseTimerOptions::num_warmup_steps},
                     {"synchronize", &PhaseTimerOptions::synchronize}}),
      entry<MemoryMonitor>("memory-monitor"),
      entry<ModelSummary, ModelSummaryOptions>("model-summary",
                                               {{"max_depth", &ModelSummaryOptions::max_depth}}),
      entry<Profiler, Trace>("profiler", {{"directory", &Trace::directory},
                                          of_schedule("skip_first", &ProfilerSchedule::skip_first),
                                          of_schedule("wait", &ProfilerSchedule::wait),
                                          of_schedule("warm_up", &ProfilerSchedule::warm_up),
                                          of_schedule("active", &ProfilerSchedule::active),
                                          of_schedule("repeat", &ProfilerSchedule::repeat),
                                          {"record_shapes", &Trace::record_shapes},
                                          {"profile_memory", &Trace::profile_memory},
                                          {"num_table_rows", &Trace::num_table_rows}}),
  };
}

const std::vector<Entry>& entries() {
  static const std::vector<Entry> all = [] {
    std::vector<Entry> list;
    for (auto&& part : {steering_callbacks(), saving_callbacks(), watching_callbacks()}) {
      list.insert(list.end(), part.begin(), part.end());
    }
    return list;
  }();
  return all;
}

const Entry& find(const std::string& name) {
  for (const Entry& entry : entries()) {
    if (entry.name == name) return entry;
  }
  throw Error("there is no callback \"" + name + "\"; there are " +
              join_with_commas(callback_names()) + ".");
}

}  // namespace

std::shared_ptr<Callback> make_callback(const std::string& name, const TextSettings& settings) {
  return find(name).make(settings);
}

std::vector<std::string> callback_names() {
  std::vector<std::string> names;
  for (const Entry& entry : entries()) names.push_back(entry.name);
  return names;
}

std::vector<std::string> callback_option_names(const std::string& name) { return find(name).keys; }

}  // namespace linkboy
