// Schedules that consist of others: the fields, states and turns of the parts, the run
// configuration that a part receives, and how the parts' values are combined.

#include "linkboy/schedulers/composite.hpp"

#include <algorithm>
#include <cmath>

#include "linkboy/error.hpp"
#include "linkboy/run/run_config.hpp"
#include "linkboy/schedulers/curves.hpp"
#include "linkboy/schedulers/option_reader.hpp"
#include "linkboy/schedulers/reactive.hpp"

namespace linkboy {
namespace {

using Parts = std::vector<std::unique_ptr<Scheduler>>;

ParamGroupField main_field(const Parts& parts) {
  LINKBOY_CHECK(!parts.empty(),
                "the composite schedule has no parts; pass at least one scheduler.");
  for (const auto& part : parts) {
    LINKBOY_CHECK(
        part != nullptr,
        "a function that makes a part of the schedule returned null; it must return a scheduler.");
    // A composite would not call its `step` after each update.
    LINKBOY_CHECK(dynamic_cast<const TimmStepsScheduler*>(part.get()) == nullptr,
                  "a timm_steps schedule sets the optimizer's values itself, so it cannot be a "
                  "part of another schedule. Use it alone, or implement the other schedule's curve "
                  "in its class.");
  }
  return parts[0]->field();
}

std::vector<ParamGroupField> find_other_fields(const Parts& parts) {
  const ParamGroupField main = main_field(parts);
  std::vector<ParamGroupField> fields;
  auto add = [&](ParamGroupField field) {
    const bool is_known = std::find(fields.begin(), fields.end(), field) != fields.end();
    if (field != main && !is_known) fields.push_back(field);
  };
  for (const auto& part : parts) {
    add(part->field());
    for (const FieldValues& other : part->other_values_at(0)) add(other.field);
  }
  return fields;
}

/// Calls each function with the configuration at the same index.
Parts make_parts(torch::optim::Optimizer& optimizer,
                 const std::vector<CreateSchedulerFn>& functions,
                 const std::vector<RunConfig>& configs) {
  Parts parts;
  for (std::size_t i = 0; i < functions.size(); ++i) {
    LINKBOY_CHECK(functions[i],
                  "a function that makes a part of the schedule is empty; pass a function.");
    parts.push_back(functions[i](optimizer, configs[i]));
  }
  return parts;
}

/// Returns the configuration for a part that spans `num_updates` updates of the run. A partial
/// epoch counts as one epoch.
RunConfig part_of_run(RunConfig config, int64_t num_updates) {
  config.max_num_updates = num_updates;
  if (config.num_updates_per_epoch > 0) {
    const bool has_rest = num_updates % config.num_updates_per_epoch != 0;
    config.num_epochs = num_updates / config.num_updates_per_epoch + (has_rest ? 1 : 0);
  }
  return config;
}

}  // namespace

CompositeScheduler::CompositeScheduler(torch::optim::Optimizer& optimizer, Parts parts)
    : Scheduler(optimizer, main_field(parts), find_other_fields(parts)),
      parts_(std::move(parts)),
      other_fields_(find_other_fields(parts_)) {
  for (std::size_t i = 0; i < parts_.size(); ++i) {
    for (const auto& [name, length] : parts_[i]->lengths()) {
      add_length("part " + std::to_string(i + 1) + " " + name, length);
    }
  }
}

std::vector<double> CompositeScheduler::values_at(int64_t update) const {
  const Turn turn = turn_at(update);
  return parts_[turn.part]->values_at(turn.update);
}

std::vector<FieldValues> CompositeScheduler::other_values_at(int64_t update) const {
  if (other_fields_.empty()) return {};
  const Turn turn = turn_at(update);
  std::vector<FieldValues> set = parts_[turn.part]->other_values_at(turn.update);
  std::vector<FieldValues> values;
  for (ParamGroupField field : other_fields_) {
    const auto same = [&](const FieldValues& item) { return item.field == field; };
    const auto found = std::find_if(set.begin(), set.end(), same);
    values.push_back(found != set.end() ? std::move(*found)
                                        : FieldValues{field, base_values(field)});
  }
  return values;
}

bool CompositeScheduler::include_new_groups() {
  for (const auto& part : parts_) part->include_new_groups();
  return Scheduler::include_new_groups();
}

void CompositeScheduler::run_start(const RunHistory& history) {
  for (const auto& part : parts_) part->run_start(history);
}

void CompositeScheduler::epoch_end(int64_t num_epochs_done, const RunHistory& history,
                                   bool has_metrics) {
  const int64_t update = update_as_part_.value_or(num_updates());
  for (std::size_t i = 0; i < parts_.size(); ++i) {
    if (!has_turn(i, update)) {
      parts_[i]->run_start(history);
      continue;
    }
    auto* composite = dynamic_cast<CompositeScheduler*>(parts_[i].get());
    if (composite != nullptr) composite->update_as_part_ = turn_at(update).update;
    parts_[i]->epoch_end(num_epochs_done, history, has_metrics);
  }
  if (!is_part()) start();
}

std::vector<std::string> CompositeScheduler::monitored_metrics() const {
  std::vector<std::string> names;
  for (const auto& part : parts_) {
    for (std::string& name : part->monitored_metrics()) names.push_back(std::move(name));
  }
  return names;
}

StateDict CompositeScheduler::state_dict() const {
  StateDict state = Scheduler::state_dict();
  c10::impl::GenericList parts(c10::AnyType::get());
  for (const auto& part : parts_) parts.push_back(part->state_dict().to_ivalue());
  state.set("parts", parts);
  return state;
}

void CompositeScheduler::check_state_dict(const StateDict& state) const {
  Scheduler::check_state_dict(state);
  const c10::IValue& parts = state.at("parts");
  LINKBOY_CHECK(parts.isList() && parts.toListRef().size() == parts_.size(),
                "the scheduler's state does not have the states of ", parts_.size(),
                " parts; it was saved by another schedule. Use the same one.");
  for (std::size_t i = 0; i < parts_.size(); ++i) {
    parts_[i]->check_state_dict(StateDict::from_ivalue(parts.toListRef()[i], "a part's state"));
  }
}

void CompositeScheduler::load_state_dict(const StateDict& state) {
  check_state_dict(state);
  const c10::IValue& parts = state.at("parts");
  for (std::size_t i = 0; i < parts_.size(); ++i) {
    parts_[i]->load_state_dict(StateDict::from_ivalue(parts.toListRef()[i], "a part's state"));
  }
  Scheduler::load_state_dict(state);
}

void CompositeScheduler::allow_changed_lengths(bool allow) {
  Scheduler::allow_changed_lengths(allow);
  for (const auto& part : parts_) part->allow_changed_lengths(allow);
}

// ---- Chained

ChainedScheduler::ChainedScheduler(torch::optim::Optimizer& optimizer,
                                   const ChainedSchedulerOptions& options, const RunConfig& config)
    : CompositeScheduler(optimizer,
                         make_parts(optimizer, options.schedulers,
                                    std::vector<RunConfig>(options.schedulers->size(), config))) {}

std::vector<double> ChainedScheduler::values_at(int64_t update) const {
  return product_at(update, field());
}

std::vector<FieldValues> ChainedScheduler::other_values_at(int64_t update) const {
  std::vector<FieldValues> values;
  for (ParamGroupField other : other_fields()) values.push_back({other, product_at(update, other)});
  return values;
}

std::vector<double> ChainedScheduler::product_at(int64_t update, ParamGroupField field) const {
  const std::vector<double>& base = base_values(field);
  std::vector<double> product = base;
  auto multiply = [&](const std::vector<double>& values) {
    for (std::size_t group = 0; group < base.size(); ++group) {
      if (base[group] != 0.0) {
        product[group] *= values[group] / base[group];
      } else if (product[group] == 0.0) {
        product[group] = values[group];  // a factor would not change it
      }
    }
  };
  for (const auto& part : parts()) {
    if (part->field() == field) multiply(part->values_at(update));
    for (const FieldValues& other : part->other_values_at(update)) {
      if (other.field == field) multiply(other.values);
    }
  }
  return product;
}

// ---- Sequential

namespace {

std::vector<int64_t> resolve_begins(const SequentialSchedulerOptions& options,
                                    const RunConfig& config) {
  LINKBOY_CHECK_OPTION(options.milestones.size() + 1 == options.schedulers->size(),
                       "the sequential schedule has ", options.schedulers->size(),
                       " schedulers and ", options.milestones.size(),
                       " milestones; there must be one milestone fewer than schedulers.");
  std::vector<int64_t> begins;
  if (!options.milestones.empty()) {
    begins = OptionReader("sequential schedule", config).milestones(options.milestones);
  }
  begins.insert(begins.begin(), 0);
  return begins;
}

Parts make_sequence(torch::optim::Optimizer& optimizer, const SequentialSchedulerOptions& options,
                    const RunConfig& config) {
  const std::vector<int64_t> begins = resolve_begins(options, config);
  std::vector<RunConfig> configs(begins.size(), config);
  for (std::size_t i = 0; i < begins.size(); ++i) {
    const int64_t end = i + 1 < begins.size() ? begins[i + 1] : config.max_num_updates;
    // A part that begins after the end of the run is also created, with the run's length.
    if (end > begins[i]) configs[i] = part_of_run(config, end - begins[i]);
  }
  return make_parts(optimizer, options.schedulers, configs);
}

}  // namespace

SequentialScheduler::SequentialScheduler(torch::optim::Optimizer& optimizer,
                                         const SequentialSchedulerOptions& options,
                                         const RunConfig& config)
    : CompositeScheduler(optimizer, make_sequence(optimizer, options, config)),
      begins_(resolve_begins(options, config)) {
  for (std::size_t i = 1; i < begins_.size(); ++i) {
    LINKBOY_CHECK(parts()[i]->field() == field(), "the sequential schedule's parts set ",
                  to_string(field()), " and ", to_string(parts()[i]->field()),
                  "; all parts must set the same field. Combine schedules of different fields with "
                  "ChainedScheduler.");
    add_length("milestone " + std::to_string(i), static_cast<double>(begins_[i]));
  }
}

CompositeScheduler::Turn SequentialScheduler::turn_at(int64_t update) const {
  const auto next = std::upper_bound(begins_.begin() + 1, begins_.end(), update);
  return {static_cast<std::size_t>(next - begins_.begin()) - 1, update - *(next - 1)};
}

// ---- Warm-up

namespace {

double resolve_warmup(const WarmupSchedulerOptions& options, const RunConfig& config) {
  const OptionReader reader("warm-up schedule", config);
  const double num_updates = reader.length("warmup_updates", options.warmup_updates);
  reader.fits_run("warmup_updates", num_updates);
  reader.not_negative("warmup_start_lr", options.warmup_start_lr);
  return num_updates;
}

Parts make_inner(torch::optim::Optimizer& optimizer, const WarmupSchedulerOptions& options,
                 const RunConfig& config) {
  const auto num_updates = static_cast<int64_t>(std::ceil(resolve_warmup(options, config)));
  const bool is_shorter = options.warmup_prefix && config.max_num_updates > 0;
  const RunConfig rest =
      is_shorter ? part_of_run(config, std::max<int64_t>(1, config.max_num_updates - num_updates))
                 : config;
  const CreateSchedulerFn base_values = constant({.factor = 1.0});
  return make_parts(optimizer, {options.scheduler ? options.scheduler : base_values}, {rest});
}

}  // namespace

WarmupScheduler::WarmupScheduler(torch::optim::Optimizer& optimizer,
                                 const WarmupSchedulerOptions& options, const RunConfig& config)
    : CompositeScheduler(optimizer, make_inner(optimizer, options, config)),
      warmup_(resolve_warmup(options, config)),
      warmup_start_lr_(options.warmup_start_lr),
      is_prefix_(options.warmup_prefix) {
  add_length("warmup_updates", warmup_);
}

CompositeScheduler::Turn WarmupScheduler::turn_at(int64_t update) const {
  const auto end = static_cast<int64_t>(std::ceil(warmup_));
  return {0, std::max(update, end) - (is_prefix_ ? end : 0)};
}

std::vector<double> WarmupScheduler::values_at(int64_t update) const {
  std::vector<double> values = CompositeScheduler::values_at(update);
  const auto n = static_cast<double>(update);
  if (n >= warmup_) return values;
  for (std::size_t group = 0; group < values.size(); ++group) {
    if (stays_zero(base_values()[group])) continue;
    values[group] = warmup_start_lr_ + n * (values[group] - warmup_start_lr_) / warmup_;
  }
  return values;
}

// ---- Timm

namespace {

/// Returns the configuration for a schedule whose updates are the epochs of the run.
RunConfig in_epochs(RunConfig config) {
  LINKBOY_CHECK(config.num_epochs > 0 && config.num_updates_per_epoch > 0,
                "the schedule counts in epochs, but the run has ", config.num_epochs, " epochs of ",
                config.num_updates_per_epoch,
                " updates; both must be at least 1. Set them in the RunConfig.");
  config.max_num_updates = config.num_epochs;
  config.num_updates_per_epoch = 1;
  return config;
}

}  // namespace

TimmScheduler::TimmScheduler(torch::optim::Optimizer& optimizer,
                             const TimmSchedulerOptions& options, const RunConfig& config)
    : CompositeScheduler(optimizer, make_parts(optimizer, {options.scheduler},
                                               {options.t_in_epochs ? in_epochs(config) : config})),
      t_in_epochs_(options.t_in_epochs),
      num_updates_per_epoch_(config.num_updates_per_epoch) {
  if (t_in_epochs_) {
    add_length("num_updates_per_epoch", static_cast<double>(num_updates_per_epoch_));
  }
}

void TimmScheduler::step(int64_t epoch) {
  LINKBOY_CHECK_OPTION(epoch >= 0, "the timm schedule is stepped to epoch ", epoch,
                       "; the epoch must not be negative.");
  epoch_ = epoch;
  if (t_in_epochs_) start();
}

void TimmScheduler::step_update(int64_t num_updates) {
  LINKBOY_CHECK_OPTION(num_updates >= 0, "the timm schedule is stepped to update ", num_updates,
                       "; the number must not be negative.");
  set_num_updates(num_updates);
  if (!t_in_epochs_ || include_new_groups()) start();
}

void TimmScheduler::epoch_end(int64_t num_epochs_done, const RunHistory& history,
                              bool has_metrics) {
  CompositeScheduler::epoch_end(num_epochs_done, history, has_metrics);
  if (!is_part()) step(num_epochs_done);
}

int64_t TimmScheduler::now() const {
  return t_in_epochs_ ? epoch_ * num_updates_per_epoch_ : num_updates();
}

StateDict TimmScheduler::state_dict() const {
  StateDict state = CompositeScheduler::state_dict();
  state.set("epoch", epoch_);
  return state;
}

void TimmScheduler::check_state_dict(const StateDict& state) const {
  CompositeScheduler::check_state_dict(state);
  LINKBOY_CHECK(state.get_int("epoch") >= 0, "the scheduler's state counts ",
                state.get_int("epoch"),
                " epochs; the count must not be negative. Use another state.");
}

void TimmScheduler::load_state_dict(const StateDict& state) {
  check_state_dict(state);
  epoch_ = state.get_int("epoch");
  CompositeScheduler::load_state_dict(state);
}

}  // namespace linkboy
