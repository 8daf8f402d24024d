#include "linkboy/scheduler.hpp"

#include <torch/optim/optimizer.h>

#include <cmath>

#include "linkboy/error.hpp"

namespace linkboy {

Scheduler::Scheduler(torch::optim::Optimizer& optimizer, ParamGroupField field,
                     const std::vector<ParamGroupField>& other_fields)
    : optimizer_(&optimizer) {
  base_.push_back({field, get_param_group_field(optimizer, field)});
  for (ParamGroupField other : other_fields) {
    base_.push_back({other, get_param_group_field(optimizer, other)});
  }
}

void Scheduler::apply(const FieldValues& target) const {
  for (double value : target.values) {
    LINKBOY_CHECK(std::isfinite(value) && value >= 0.0, "the schedule gives ",
                  to_string(target.field), " = ", value, " for update ", num_updates_ + 1,
                  "; it must be finite and not negative.");
  }
  set_param_group_field(*optimizer_, target.field, target.values);
}

void Scheduler::start() {
  include_new_groups();
  apply({field(), values_at(now())});
  for (const FieldValues& other : other_values_at(now())) apply(other);
}

void Scheduler::step() {
  ++num_updates_;
  start();
}

bool Scheduler::include_new_groups() {
  const std::size_t num_known = base_values().size();
  const std::size_t num_groups = optimizer_->param_groups().size();
  LINKBOY_CHECK(num_groups >= num_known, "the optimizer has ", num_groups,
                " param groups, but its scheduler was made for ", num_known,
                "; groups may be added, not taken away. Make a new scheduler.");
  if (num_groups == num_known) return false;
  for (FieldValues& base : base_) {
    const std::vector<double> values = get_param_group_field(*optimizer_, base.field);
    base.values.insert(base.values.end(), values.begin() + static_cast<std::ptrdiff_t>(num_known),
                       values.end());
  }
  return true;
}

void Scheduler::restore_base_values() {
  std::vector<FieldValues> set = other_values_at(now());
  set.insert(set.begin(), {field(), values_at(now())});
  for (const FieldValues& last : set) {
    std::vector<double> values = get_param_group_field(*optimizer_, last.field);
    const std::vector<double>& base = base_values(last.field);
    for (std::size_t group = 0; group < base.size(); ++group) {
      if (values[group] == last.values[group]) values[group] = base[group];
    }
    set_param_group_field(*optimizer_, last.field, values);
  }
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
  for (const auto& [name, length] : lengths()) lengths_now.set(name, length);
  StateDict state;
  state.set("num_updates", num_updates_);
  state.set("base_values", base_values);
  state.set("lengths", lengths_now);
  return state;
}

void Scheduler::check_state_dict(const StateDict& state) const {
  const int64_t num_updates = state.get_int("num_updates");
  LINKBOY_CHECK(num_updates >= 0, "the scheduler's state counts ", num_updates,
                " updates; the count must not be negative.");
  const StateDict base_values = state.get_dict("base_values");
  for (const FieldValues& base : base_) {
    const std::size_t num_saved = base_values.get_doubles(to_string(base.field)).size();
    const std::size_t num_groups = optimizer_->param_groups().size();
    LINKBOY_CHECK(num_saved == num_groups, "the scheduler's state is of ", num_saved,
                  " param groups, but the optimizer has ", num_groups, ".");
  }
  const StateDict saved = state.get_dict("lengths");
  if (allows_changed_lengths_) return;
  for (const auto& [name, length] : lengths()) {
    LINKBOY_CHECK(saved.contains(name), "the scheduler's state has no length \"", name,
                  "\"; it was saved by another schedule. Take the same one.");
    LINKBOY_CHECK(saved.get_double(name) == length, "the scheduler's state was saved with ", name,
                  " = ", saved.get_double(name), " updates, but it is ", length,
                  " in this run, so that the curve is another one. Train for the same length, or "
                  "allow it with TrainOptions::allow_changed_schedule_length.");
  }
}

void Scheduler::load_state_dict(const StateDict& state) {
  check_state_dict(state);
  num_updates_ = state.get_int("num_updates");
  const StateDict base_values = state.get_dict("base_values");
  for (FieldValues& base : base_) base.values = base_values.get_doubles(to_string(base.field));
  start();
}

std::vector<double> CurveScheduler::values_at(int64_t update) const {
  std::vector<double> values;
  values.reserve(base_values().size());
  for (double base : base_values()) values.push_back(value_at(update, base));
  return values;
}

}  // namespace linkboy
