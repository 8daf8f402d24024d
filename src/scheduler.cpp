#include "linkboy/scheduler.hpp"

#include <torch/optim/optimizer.h>

#include <cmath>

#include "linkboy/error.hpp"

namespace linkboy {

Scheduler::Scheduler(torch::optim::Optimizer& optimizer, ParamGroupField field)
    : optimizer_(&optimizer),
      field_(field),
      base_values_(get_param_group_field(optimizer, field)) {}

void Scheduler::start() {
  const std::vector<double> values = values_at(num_updates_);
  for (double value : values) {
    LINKBOY_CHECK(std::isfinite(value) && value >= 0.0, "the schedule gives ", to_string(field_),
                  " = ", value, " for update ", num_updates_ + 1,
                  "; it must be finite and not negative.");
  }
  set_param_group_field(*optimizer_, field_, values);
}

void Scheduler::step() {
  ++num_updates_;
  start();
}

void Scheduler::restore_base_values() {
  if (get_param_group_field(*optimizer_, field_) == values_at(num_updates_)) {
    set_param_group_field(*optimizer_, field_, base_values_);
  }
}

StateDict Scheduler::state_dict() const {
  StateDict state;
  state.set("num_updates", num_updates_);
  state.set("base_values", base_values_);
  return state;
}

void Scheduler::load_state_dict(const StateDict& state) {
  const int64_t num_updates = state.get_int("num_updates");
  std::vector<double> base_values = state.get_doubles("base_values");
  LINKBOY_CHECK(num_updates >= 0, "the scheduler's state counts ", num_updates,
                " updates; the count must not be negative.");
  LINKBOY_CHECK(base_values.size() == base_values_.size(), "the scheduler's state is of ",
                base_values.size(), " param groups, but the optimizer has ", base_values_.size(),
                ".");
  num_updates_ = num_updates;
  base_values_ = std::move(base_values);
  start();
}

}  // namespace linkboy
