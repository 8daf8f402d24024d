// The base of schedules that consist of others: the fields, states and turns of the parts, and the
// run configuration that a part receives.

#include "linkboy/schedulers/composite_scheduler.hpp"

#include <algorithm>

#include "linkboy/error.hpp"
#include "linkboy/run/run_config.hpp"
#include "linkboy/schedulers/timm_steps_scheduler.hpp"

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

}  // namespace

CompositeScheduler::CompositeScheduler(torch::optim::Optimizer& optimizer, Parts parts)
    : Scheduler(optimizer, main_field(parts), find_other_fields(parts)),
      parts_(std::move(parts)),
      other_fields_(find_other_fields(parts_)) {}

std::vector<double> CompositeScheduler::part_values(std::size_t part, int64_t update) const {
  return parts_[part]->values_at(update);
}

std::vector<FieldValues> CompositeScheduler::other_part_values(std::size_t part,
                                                               int64_t update) const {
  if (other_fields_.empty()) return {};
  std::vector<FieldValues> set = parts_[part]->other_values_at(update);
  std::vector<FieldValues> values;
  for (ParamGroupField field : other_fields_) {
    const auto same = [&](const FieldValues& item) { return item.field == field; };
    const auto found = std::find_if(set.begin(), set.end(), same);
    values.push_back(found != set.end() ? std::move(*found)
                                        : FieldValues{field, base_values(field)});
  }
  return values;
}

void CompositeScheduler::check_same_field(const char* schedule) const {
  for (const auto& part : parts_) {
    LINKBOY_CHECK(part->field() == field(), "the ", schedule, "'s parts set ", to_string(field()),
                  " and ", to_string(part->field()),
                  "; all parts must set the same field. Combine schedules of different fields with "
                  "ChainedScheduler.");
  }
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
    if (composite != nullptr) composite->update_as_part_ = part_update(i, update);
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

std::vector<Scheduler::Length> CompositeScheduler::lengths() const {
  std::vector<Length> lengths;
  for (std::size_t i = 0; i < parts_.size(); ++i) {
    for (const auto& [name, length] : parts_[i]->lengths()) {
      lengths.emplace_back("part " + std::to_string(i + 1) + " " + name, length);
    }
  }
  return lengths;
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

RunConfig part_of_run(RunConfig config, int64_t num_updates) {
  config.max_num_updates = num_updates;
  if (config.num_updates_per_epoch > 0) {
    const bool has_rest = num_updates % config.num_updates_per_epoch != 0;
    config.num_epochs = num_updates / config.num_updates_per_epoch + (has_rest ? 1 : 0);
  }
  return config;
}

std::vector<std::unique_ptr<Scheduler>> make_parts(torch::optim::Optimizer& optimizer,
                                                   const std::vector<CreateSchedulerFn>& functions,
                                                   const std::vector<RunConfig>& configs) {
  std::vector<std::unique_ptr<Scheduler>> parts;
  for (std::size_t i = 0; i < functions.size(); ++i) {
    LINKBOY_CHECK(functions[i],
                  "a function that makes a part of the schedule is empty; pass a function.");
    parts.push_back(functions[i](optimizer, configs[i]));
  }
  return parts;
}

}  // namespace linkboy
