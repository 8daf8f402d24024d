// The learning rate and other fields that an update used, read before the update because the
// scheduler then sets those of the next one.

#include "linkboy/callbacks/learning_rate_monitor.hpp"

#include <utility>

#include "linkboy/error.hpp"
#include "linkboy/trainer.hpp"

namespace linkboy {
namespace {

constexpr const char* kUpdate = "update";

c10::IValue to_ivalue(const UpdateValues& values) {
  StateDict state{{kUpdate, values.update}};
  for (const auto& field : values.fields) state.set(to_string(field.field), field.values);
  return state;
}

}  // namespace

LearningRateMonitor::LearningRateMonitor(LearningRateMonitorOptions options)
    : options_(std::move(options)) {
  LINKBOY_CHECK_OPTION(!options_.fields.empty(),
                       "fields is empty; it must contain at least one field, such as lr.");
  LINKBOY_CHECK_OPTION(options_.every_n_updates >= 0, "every_n_updates is ",
                       options_.every_n_updates,
                       "; it must not be negative. Use 0 to keep no series.");
}

void LearningRateMonitor::on_training_run_start(Trainer& trainer) {
  read(trainer);  // throws now, not after the first epoch, if the optimizer lacks a field
  if (is_resumed()) return;
  last_ = {};
  series_.clear();
}

std::vector<FieldValues> LearningRateMonitor::read(Trainer& trainer) const {
  std::vector<FieldValues> fields;
  for (const ParamGroupField field : options_.fields) {
    fields.push_back({field, get_param_group_field(*trainer.optimizer(), field)});
  }
  return fields;
}

// After the update, the scheduler has already set the values of the next one.
void LearningRateMonitor::on_gradients_ready(Trainer& trainer) { next_ = read(trainer); }

void LearningRateMonitor::on_train_update_end(Trainer& trainer) {
  if (trainer.was_update_skipped()) return;
  last_ = {trainer.num_updates(), next_};
  if (options_.every_n_updates > 0 && last_.update % options_.every_n_updates == 0) {
    series_.push_back(last_);
  }
}

void LearningRateMonitor::on_train_epoch_end(Trainer& trainer) {
  for (const auto& [field, values] : last_.fields) {
    const std::string name = to_string(field);
    for (std::size_t i = 0; i < values.size(); ++i) {
      trainer.run_history().update_metric(
          values.size() == 1 ? name : name + "_group_" + std::to_string(i), values[i]);
    }
  }
}

UpdateValues LearningRateMonitor::from_ivalue(const c10::IValue& value) const {
  const StateDict state = StateDict::from_ivalue(value, "values of LearningRateMonitor");
  UpdateValues values{.update = state.get_int(kUpdate)};
  // The run may have been resumed with other fields.
  for (const ParamGroupField field : options_.fields) {
    const std::string name = to_string(field);
    if (state.contains(name)) values.fields.push_back({field, state.get_doubles(name)});
  }
  return values;
}

StateDict LearningRateMonitor::state_dict() const {
  c10::impl::GenericList series(c10::AnyType::get());
  for (const UpdateValues& values : series_) series.push_back(to_ivalue(values));
  return {{"last", to_ivalue(last_)}, {"series", series}};
}

void LearningRateMonitor::load_state_dict(const StateDict& state) {
  last_ = from_ivalue(state.at("last"));
  series_.clear();
  for (const c10::IValue& values : state.get_list("series")) series_.push_back(from_ivalue(values));
}

}  // namespace linkboy
