// Recent scalars of a run with the number of their update. The number is corrected later if it
// turns out that fp16 has skipped an update.

#include "linkboy/callbacks/event_storage.hpp"

#include <ATen/ATen.h>
#include <c10/util/StringUtil.h>

#include <algorithm>
#include <utility>

#include "linkboy/error.hpp"
#include "linkboy/trainer.hpp"

namespace linkboy {

EventStorage::EventStorage(EventStorageOptions options) : options_(options) {
  LINKBOY_CHECK_OPTION(options_.window >= 1, "the window of EventStorage is ", options_.window,
                       "; it must be at least 1.");
}

void EventStorage::put_scalar(std::string_view name, double scalar) {
  put(name, {num_updates_, AsyncScalar(scalar)});
}

void EventStorage::put_scalar(std::string_view name, const at::Tensor& scalar) {
  put(name, {num_updates_, AsyncScalar(scalar)});
}

void EventStorage::put(std::string_view name, Value value) {
  auto place = values_.find(name);
  if (place == values_.end()) place = values_.emplace(std::string(name), Values()).first;
  place->second.push_back(std::move(value));
  if (std::ssize(place->second) > options_.window) place->second.pop_front();
}

std::vector<std::string> EventStorage::names() const {
  std::vector<std::string> names;
  for (const auto& [name, values] : values_) names.push_back(name);
  return names;
}

EventStorage::Values EventStorage::find(std::string_view name, int64_t num_values) const {
  LINKBOY_CHECK(num_values >= 1, "the number of values of \"", name, "\" is ", num_values,
                "; it must be at least 1.");
  const auto place = values_.find(name);
  LINKBOY_CHECK(place != values_.end(), "EventStorage has no values of \"", name, "\"; ",
                values_.empty() ? "it has no values yet."
                                : "it has values of: " + c10::Join(", ", names()) + ".");
  const Values& all = place->second;
  return {all.end() - std::min<int64_t>(std::ssize(all), num_values), all.end()};
}

double EventStorage::latest(std::string_view name) const { return values(name, 1).item<double>(); }

at::Tensor EventStorage::values(std::string_view name, int64_t num_values) const {
  std::vector<double> newest;
  for (const Value& value : find(name, num_values)) newest.push_back(value.get());
  return at::tensor(newest, at::kDouble);
}

at::Tensor EventStorage::updates(std::string_view name, int64_t num_values) const {
  std::vector<int64_t> newest;
  for (const Value& value : find(name, num_values)) newest.push_back(value.update);
  return at::tensor(newest, at::kLong);
}

void EventStorage::on_training_run_start(Trainer& trainer) {
  loss_.reset();
  // Another number of processes resumes without the values of each rank.
  if (std::exchange(is_state_loaded_, false) && is_resumed()) return;
  values_.clear();
  num_updates_ = trainer.num_updates();
}

void EventStorage::on_train_step_end(Trainer& trainer, const Batch&, const StepOutput& output) {
  if (trainer.accelerator().window().index == 0) {
    loss_.reset();
    ++num_updates_;
  }
  loss_.update(output.loss, output.batch_size);
}

void EventStorage::on_gradients_ready(Trainer& trainer) {
  // Whether the previous update was skipped may be known only now.
  if (num_updates_ > trainer.num_updates() + 1) renumber(trainer.num_updates() + 1);
  // After the update, the scheduler has already set the learning rate of the next one.
  put_scalar("learning_rate",
             get_param_group_field(*trainer.optimizer(), ParamGroupField::lr).front());
}

/// Gives `update`, which follows skipped updates, and these updates the same number.
void EventStorage::renumber(int64_t update) {
  num_updates_ = update;
  for (auto& [name, values] : values_) {
    for (auto value = values.rbegin(); value != values.rend() && value->update > update; ++value) {
      value->update = update;
    }
  }
}

void EventStorage::on_train_update_end(Trainer&) {
  put("train_loss", {num_updates_, loss_.total_async(), static_cast<double>(loss_.count())});
}

StateDict EventStorage::rank_state_dict() const {
  StateDict all;
  for (const auto& [name, values] : values_) {
    StateDict own{{"updates", updates(name, options_.window)},
                  {"values", this->values(name, options_.window)}};
    all.set(name, own);
  }
  StateDict state{{"num_updates", num_updates_}};
  state.set("scalars", all);
  return state;
}

void EventStorage::load_rank_state_dict(const StateDict& state) {
  std::map<std::string, Values, std::less<>> loaded;
  const StateDict all = state.get_dict("scalars");
  for (const auto& entry : all.entries()) {
    const StateDict own = all.get_dict(entry.first);
    const at::Tensor updates = own.get_tensor("updates").to(at::kCPU, at::kLong).contiguous();
    const at::Tensor values = own.get_tensor("values").to(at::kCPU, at::kDouble).contiguous();
    LINKBOY_CHECK(updates.dim() == 1 && updates.sizes() == values.sizes(), "the saved values of \"",
                  entry.first, "\" have shape ", values.sizes(), ", but their updates have shape ",
                  updates.sizes(),
                  "; both must be one-dimensional and of the same length. Use another state.");
    Values& mine = loaded[entry.first];
    const int64_t first = std::max<int64_t>(updates.numel() - options_.window, 0);
    for (int64_t i = first; i < updates.numel(); ++i) {
      mine.push_back({updates.data_ptr<int64_t>()[i], AsyncScalar(values.data_ptr<double>()[i])});
    }
    if (mine.empty()) loaded.erase(entry.first);
  }
  values_ = std::move(loaded);
  num_updates_ = state.get_int("num_updates");
  is_state_loaded_ = true;
}

}  // namespace linkboy
