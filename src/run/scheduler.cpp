// Writes a schedule's values to the optimizer after each update, and checks them and saved states.

#include "linkboy/scheduler.hpp"

#include <c10/util/Type.h>
#include <torch/optim/optimizer.h>

#include <cmath>
#include <typeinfo>

#include "linkboy/error.hpp"
#include "linkboy/util/text_options.hpp"
#include "run/base_values.hpp"

namespace linkboy {
namespace {

constexpr const char* kHowToAllow =
    " with TrainOptions::allow_changed_schedule_length or, in an Engine, with "
    "Scheduler::allow_changed_lengths.";

/// At 1 or above, a moving average forgets nothing, and Adam divides by 1 - beta.
bool is_below_one(ParamGroupField field) {
  return field == ParamGroupField::momentum || field == ParamGroupField::beta2;
}

bool is_valid(ParamGroupField field, double value) {
  return std::isfinite(value) && value >= 0.0 && (value < 1.0 || !is_below_one(field));
}

bool are_valid(const std::vector<FieldValues>& all) {
  for (const auto& [field, values] : all) {
    for (double value : values) {
      if (!is_valid(field, value)) return false;
    }
  }
  return true;
}

void check(const std::vector<FieldValues>& all, int64_t update) {
  for (const auto& [field, values] : all) {
    for (double value : values) {
      LINKBOY_CHECK(is_valid(field, value), "the schedule returns ", to_string(field), " = ", value,
                    " for update ", update + 1, "; it must be finite, not negative",
                    is_below_one(field) ? " and below 1." : ".");
    }
  }
}

std::string class_of(const Scheduler& scheduler) { return c10::demangle(typeid(scheduler).name()); }

}  // namespace

Scheduler::Scheduler(torch::optim::Optimizer& optimizer, ParamGroupField field,
                     const std::vector<ParamGroupField>& other_fields)
    : optimizer_(&optimizer) {
  base_.push_back({field, get_param_group_field(optimizer, field)});
  for (ParamGroupField other : other_fields) {
    base_.push_back({other, get_param_group_field(optimizer, other)});
  }
}

std::vector<FieldValues> Scheduler::all_values_at(int64_t update) const {
  std::vector<FieldValues> all = other_values_at(update);
  all.insert(all.begin(), {field(), values_at(update)});
  return all;
}

void Scheduler::check_values_at(int64_t update) const { check(all_values_at(update), update); }

void Scheduler::start() {
  include_new_groups();
  const std::vector<FieldValues> all = all_values_at(now());
  if (num_updates_ >= num_updates_of_run_ && !are_valid(all)) return;
  check(all, num_updates_);
  for (const auto& [field, values] : all) set_param_group_field(*optimizer_, field, values);
}

void Scheduler::step() {
  ++num_updates_;
  start();
}

void Scheduler::check_groups() const {
  const std::size_t num_groups = optimizer_->param_groups().size();
  LINKBOY_CHECK(num_groups >= base_values().size(), "the optimizer has ", num_groups,
                " param groups, but its scheduler was created for ", base_values().size(),
                "; groups can be added but not removed. Create a new scheduler.");
}

bool Scheduler::include_new_groups() {
  check_groups();
  const std::size_t num_known = base_values().size();
  if (optimizer_->param_groups().size() == num_known) return false;
  for (FieldValues& base : base_) {
    const std::vector<double> values = get_param_group_field(*optimizer_, base.field);
    base.values.insert(base.values.end(), values.begin() + static_cast<std::ptrdiff_t>(num_known),
                       values.end());
  }
  return true;
}

std::vector<FieldValues> Scheduler::last_values() const {
  check_groups();
  std::vector<FieldValues> set = all_values_at(now());
  if (!are_valid(set) && now() > 0) set = all_values_at(now() - 1);  // see `start`
  return set;
}

const std::vector<double>& Scheduler::base_values(ParamGroupField field) const {
  for (const FieldValues& base : base_) {
    if (base.field == field) return base.values;
  }
  throw Error("the schedule does not set " + to_string(field) + ".");
}

StateDict Scheduler::state_dict() const {
  StateDict base_values;
  for (const FieldValues& base : base_) base_values.set(to_string(base.field), base.values);
  StateDict lengths_now;
  for (const auto& [name, length] : lengths_) lengths_now.set(name, length);
  StateDict state;
  state.set("class", class_of(*this));
  state.set("num_updates", num_updates_);
  state.set("base_values", base_values);
  state.set("lengths", lengths_now);
  return state;
}

void Scheduler::check_state_dict(const StateDict& state) const {
  const int64_t num_updates = state.get_int("num_updates");
  LINKBOY_CHECK(num_updates >= 0, "the scheduler's state has a count of ", num_updates,
                " updates; the count must not be negative. Use another state.");
  const StateDict base_values = state.get_dict("base_values");
  for (const FieldValues& base : base_) {
    const std::size_t num_saved = base_values.get_doubles(to_string(base.field)).size();
    const std::size_t num_groups = optimizer_->param_groups().size();
    LINKBOY_CHECK(num_saved == num_groups, "the scheduler's state has ", num_saved,
                  " param groups, but the optimizer has ", num_groups,
                  ". Build the optimizer with the groups that it was saved with.");
  }
  const StateDict saved = state.get_dict("lengths");
  if (allows_changed_lengths_) return;
  const std::string saved_class = state.get_string("class");
  LINKBOY_CHECK(saved_class == class_of(*this),
                "the scheduler's state was saved by another schedule (", saved_class,
                "), but this run has ", class_of(*this),
                ". Use the same schedule, or allow the change", kHowToAllow);
  for (const auto& [name, length] : lengths_) {
    LINKBOY_CHECK(saved.contains(name), "the scheduler's state has no length \"", name,
                  "\"; it was saved by another schedule. Use the same one.");
    LINKBOY_CHECK(
        saved.get_double(name) == length, "the scheduler's state was saved with ", name, " = ",
        saved.get_double(name), " updates, but it is ", length,
        " in this run, which changes the curve. Use the same schedule options, epochs, batch "
        "size, data and number of processes, or allow the change",
        kHowToAllow);
  }
  LINKBOY_CHECK(saved.size() == lengths_.size(), "the scheduler's state has ", saved.size(),
                " lengths, but this schedule has ", lengths_.size(),
                "; it was saved with other options. Use the same ones, or allow the change",
                kHowToAllow);
}

void Scheduler::load_state_dict(const StateDict& state) {
  check_state_dict(state);
  num_updates_ = state.get_int("num_updates");
  const StateDict base_values = state.get_dict("base_values");
  for (FieldValues& base : base_) base.values = base_values.get_doubles(to_string(base.field));
  start();
}

std::vector<double> CurveScheduler::values_at(int64_t update) const {
  return values_of_groups([&](std::size_t, double base) { return value_at(update, base); });
}

}  // namespace linkboy
