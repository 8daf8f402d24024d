#include "linkboy/schedulers/scheduler_factory.hpp"

#include <functional>

#include "linkboy/error.hpp"
#include "linkboy/schedulers/constant_scheduler.hpp"
#include "linkboy/schedulers/cosine_restarts_scheduler.hpp"
#include "linkboy/schedulers/cosine_scheduler.hpp"
#include "linkboy/schedulers/cyclic_scheduler.hpp"
#include "linkboy/schedulers/exponential_scheduler.hpp"
#include "linkboy/schedulers/inverse_sqrt_scheduler.hpp"
#include "linkboy/schedulers/linear_scheduler.hpp"
#include "linkboy/schedulers/multi_step_scheduler.hpp"
#include "linkboy/schedulers/one_cycle_scheduler.hpp"
#include "linkboy/schedulers/polynomial_scheduler.hpp"
#include "linkboy/schedulers/reduce_on_plateau_scheduler.hpp"
#include "linkboy/schedulers/step_scheduler.hpp"
#include "linkboy/schedulers/tanh_scheduler.hpp"
#include "linkboy/schedulers/wsd_scheduler.hpp"
#include "linkboy/util/text_options.hpp"

namespace linkboy {

// Found by the type of the option; hence not in the namespace without a name.

static void read_text(const std::string& text, PerGroup& value) {
  std::vector<double> values;
  for (const std::string& item : split_at(',', text)) read_text(item, values.emplace_back());
  value = values.size() == 1 ? PerGroup(values[0]) : PerGroup(values);
}

static void read_text(const std::string& text, std::vector<RunExpression>& values) {
  for (const std::string& item : split_at(',', text)) values.push_back(RunExpression::parse(item));
}

static void read_text(const std::string& text, OneCycleSchedulerOptions::AnnealStrategy& value) {
  using enum OneCycleSchedulerOptions::AnnealStrategy;
  read_text_choice(text, value, {{"cos", cos}, {"linear", linear}});
}

static void read_text(const std::string& text, CyclicSchedulerOptions::Mode& value) {
  using enum CyclicSchedulerOptions::Mode;
  read_text_choice(
      text, value,
      {{"triangular", triangular}, {"triangular2", triangular2}, {"exp_range", exp_range}});
}

static void read_text(const std::string& text, WsdSchedulerOptions::Decay& value) {
  using enum WsdSchedulerOptions::Decay;
  read_text_choice(text, value, {{"sqrt", sqrt}, {"inverse", inverse}, {"linear", linear}});
}

static void read_text(const std::string& text, ReduceOnPlateauSchedulerOptions::Mode& value) {
  using enum ReduceOnPlateauSchedulerOptions::Mode;
  read_text_choice(text, value, {{"min", min}, {"max", max}});
}

static void read_text(const std::string& text,
                      ReduceOnPlateauSchedulerOptions::ThresholdMode& value) {
  using enum ReduceOnPlateauSchedulerOptions::ThresholdMode;
  read_text_choice(text, value, {{"rel", rel}, {"abs", abs}});
}

namespace {

struct Entry {
  std::string name;
  std::vector<std::string> keys;
  std::function<CreateSchedulerFn(const SchedulerSettings&)> make;
};

template <class S, class Options>
Entry entry(std::string name, std::vector<TextOption<Options>> options) {
  options.emplace_back("field", &Options::field);
  std::vector<std::string> keys = keys_of(options);
  auto make = [name, options = std::move(options)](const SchedulerSettings& settings) {
    return scheduler_fn<S>(options_from_text("scheduler " + name, options, settings));
  };
  return {std::move(name), std::move(keys), std::move(make)};
}

const std::vector<Entry>& entries() {
  using Step = StepSchedulerOptions;
  using MultiStep = MultiStepSchedulerOptions;
  using Constant = ConstantSchedulerOptions;
  using Linear = LinearSchedulerOptions;
  using Exponential = ExponentialSchedulerOptions;
  using Polynomial = PolynomialSchedulerOptions;
  using Cosine = CosineSchedulerOptions;
  using Restarts = CosineRestartsSchedulerOptions;
  using Tanh = TanhSchedulerOptions;
  using OneCycle = OneCycleSchedulerOptions;
  using Cyclic = CyclicSchedulerOptions;
  using InverseSqrt = InverseSqrtSchedulerOptions;
  using Wsd = WsdSchedulerOptions;
  using Plateau = ReduceOnPlateauSchedulerOptions;
  static const std::vector<Entry> all{
      entry<StepScheduler, Step>("step",
                                 {{"step_size", &Step::step_size}, {"gamma", &Step::gamma}}),
      entry<MultiStepScheduler, MultiStep>(
          "multi-step", {{"milestones", &MultiStep::milestones}, {"gamma", &MultiStep::gamma}}),
      entry<ConstantScheduler, Constant>(
          "constant", {{"factor", &Constant::factor}, {"total_iters", &Constant::total_iters}}),
      entry<LinearScheduler, Linear>("linear", {{"start_factor", &Linear::start_factor},
                                                {"end_factor", &Linear::end_factor},
                                                {"total_iters", &Linear::total_iters}}),
      entry<ExponentialScheduler, Exponential>("exponential", {{"gamma", &Exponential::gamma}}),
      entry<PolynomialScheduler, Polynomial>("polynomial",
                                             {{"total_iters", &Polynomial::total_iters},
                                              {"power", &Polynomial::power},
                                              {"lr_min", &Polynomial::lr_min},
                                              {"k_decay", &Polynomial::k_decay}}),
      entry<CosineScheduler, Cosine>(
          "cosine", {{"num_epochs", &Cosine::num_epochs},
                     {"num_update_steps_per_epoch", &Cosine::num_update_steps_per_epoch},
                     {"k_decay", &Cosine::k_decay},
                     {"lr_min", &Cosine::lr_min},
                     {"min_lr_ratio", &Cosine::min_lr_ratio},
                     {"num_warmup_epochs", &Cosine::num_warmup_epochs},
                     {"warmup_starting_lr", &Cosine::warmup_starting_lr},
                     {"warmup_starting_lr_ratio", &Cosine::warmup_starting_lr_ratio},
                     {"num_cooldown_epochs", &Cosine::num_cooldown_epochs}}),
      entry<CosineRestartsScheduler, Restarts>("cosine-restarts",
                                               {{"T_0", &Restarts::T_0},
                                                {"num_cycles", &Restarts::num_cycles},
                                                {"T_mult", &Restarts::T_mult},
                                                {"cycle_decay", &Restarts::cycle_decay},
                                                {"cycle_limit", &Restarts::cycle_limit},
                                                {"eta_min", &Restarts::eta_min},
                                                {"k_decay", &Restarts::k_decay},
                                                {"warmup_t", &Restarts::warmup_t},
                                                {"warmup_lr_init", &Restarts::warmup_lr_init}}),
      entry<TanhScheduler, Tanh>("tanh", {{"t_initial", &Tanh::t_initial},
                                          {"lb", &Tanh::lb},
                                          {"ub", &Tanh::ub},
                                          {"lr_min", &Tanh::lr_min}}),
      entry<OneCycleScheduler, OneCycle>("one-cycle",
                                         {{"max_lr", &OneCycle::max_lr},
                                          {"total_steps", &OneCycle::total_steps},
                                          {"pct_start", &OneCycle::pct_start},
                                          {"anneal_strategy", &OneCycle::anneal_strategy},
                                          {"cycle_momentum", &OneCycle::cycle_momentum},
                                          {"base_momentum", &OneCycle::base_momentum},
                                          {"max_momentum", &OneCycle::max_momentum},
                                          {"div_factor", &OneCycle::div_factor},
                                          {"final_div_factor", &OneCycle::final_div_factor},
                                          {"three_phase", &OneCycle::three_phase}}),
      entry<CyclicScheduler, Cyclic>("cyclic", {{"base_lr", &Cyclic::base_lr},
                                                {"max_lr", &Cyclic::max_lr},
                                                {"step_size_up", &Cyclic::step_size_up},
                                                {"step_size_down", &Cyclic::step_size_down},
                                                {"mode", &Cyclic::mode},
                                                {"gamma", &Cyclic::gamma},
                                                {"cycle_momentum", &Cyclic::cycle_momentum},
                                                {"base_momentum", &Cyclic::base_momentum},
                                                {"max_momentum", &Cyclic::max_momentum}}),
      entry<InverseSqrtScheduler, InverseSqrt>(
          "inverse-sqrt", {{"num_warmup_steps", &InverseSqrt::num_warmup_steps},
                           {"warmup_starting_lr", &InverseSqrt::warmup_starting_lr},
                           {"timescale", &InverseSqrt::timescale}}),
      entry<WsdScheduler, Wsd>(
          "wsd", {{"total_steps", &Wsd::total_steps},
                  {"num_warmup_steps", &Wsd::num_warmup_steps},
                  {"warmup_starting_lr", &Wsd::warmup_starting_lr},
                  {"decay", &Wsd::decay},
                  {"decay_phase_ratio", &Wsd::decay_phase_ratio},
                  {"lr_min", &Wsd::lr_min},
                  {"num_checkpoints", &Wsd::num_checkpoints},
                  {"is_continuation_from_checkpoint", &Wsd::is_continuation_from_checkpoint}}),
      entry<ReduceOnPlateauScheduler, Plateau>("plateau",
                                               {{"metric", &Plateau::metric},
                                                {"mode", &Plateau::mode},
                                                {"factor", &Plateau::factor},
                                                {"patience", &Plateau::patience},
                                                {"threshold", &Plateau::threshold},
                                                {"threshold_mode", &Plateau::threshold_mode},
                                                {"cooldown", &Plateau::cooldown},
                                                {"min_lr", &Plateau::min_lr},
                                                {"eps", &Plateau::eps}}),
  };
  return all;
}

const Entry& find(const std::string& name) {
  for (const Entry& entry : entries()) {
    if (entry.name == name) return entry;
  }
  throw Error("there is no scheduler \"" + name + "\"; there are " +
              join_with_commas(scheduler_names()) + ".");
}

}  // namespace

CreateSchedulerFn make_scheduler_fn(const std::string& name, const SchedulerSettings& settings) {
  return find(name).make(settings);
}

std::vector<std::string> scheduler_names() {
  std::vector<std::string> names;
  for (const Entry& entry : entries()) names.push_back(entry.name);
  return names;
}

std::vector<std::string> scheduler_option_names(const std::string& name) { return find(name).keys; }

}  // namespace linkboy
