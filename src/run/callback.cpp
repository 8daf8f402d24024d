// Orders callbacks, calls their events, and gives each its part of a saved state.

#include "linkboy/callback.hpp"

#include <c10/util/Type.h>

#include <algorithm>
#include <typeinfo>
#include <utility>

#include "linkboy/error.hpp"
#include "linkboy/run/stop_training.hpp"

namespace linkboy {

std::string Callback::default_name() const {
  return std::string(c10::demangle(typeid(*this).name()));
}

void Callback::set_name(std::string name) {
  LINKBOY_CHECK(!name.empty(), "the name of a callback is empty; give it at least one character.");
  LINKBOY_CHECK(
      !is_given_, "the callback ", this->name(), " cannot be renamed to ", name,
      ", because a Trainer already has it. Call set_name before you give the callback to a "
      "Trainer.");
  name_ = std::move(name);
}

void Callback::on_event(std::string name, EventHandler handler) {
  event_handlers_.insert_or_assign(std::move(name), std::move(handler));
}

void Callback::handle_event(std::string_view name, Trainer& trainer, const std::any& payload) {
  auto found = event_handlers_.find(name);
  if (found != event_handlers_.end()) found->second(trainer, payload);
}

CallbackHandler::CallbackHandler(CallbackList callbacks) {
  for (auto& callback : callbacks) add(std::move(callback));
}

void CallbackHandler::add(std::shared_ptr<Callback> callback) {
  LINKBOY_CHECK_OPTION(callback != nullptr, "a callback is null; pass a callback.");
  const std::vector<std::string> present = names();
  LINKBOY_CHECK_OPTION(std::find(present.begin(), present.end(), callback->name()) == present.end(),
                       "there already is a callback named ", callback->name(),
                       ". To use two of one class, rename one of them with "
                       "set_name. The callbacks are: ",
                       c10::Join(", ", present), ".");
  const auto later = std::upper_bound(
      callbacks_.begin(), callbacks_.end(), callback,
      [](const auto& added, const auto& present) { return added->phase() < present->phase(); });
  callback->is_given_ = true;
  callbacks_.insert(later, std::move(callback));
}

std::vector<std::string> CallbackHandler::remove_if(
    const std::function<bool(const Callback&)>& is_unwanted) {
  std::vector<std::string> removed;
  std::erase_if(callbacks_, [&](const std::shared_ptr<Callback>& callback) {
    if (!is_unwanted(*callback)) return false;
    removed.push_back(callback->name());
    return true;
  });
  return removed;
}

std::vector<std::string> CallbackHandler::names() const {
  std::vector<std::string> names;
  for (const auto& callback : callbacks_) names.push_back(callback->name());
  return names;
}

std::size_t CallbackHandler::index_behind(c10::ArrayRef<const Callback*> called,
                                          Callback::Phase phase) const {
  std::size_t index = 0;
  while (index < callbacks_.size() && callbacks_[index]->phase() < phase) ++index;
  for (std::size_t i = index; i < callbacks_.size(); ++i) {
    if (std::find(called.begin(), called.end(), callbacks_[i].get()) != called.end()) index = i + 1;
  }
  return index;
}

bool CallbackHandler::try_mark_initialized(const Callback& callback) {
  std::erase_if(initialized_, [](const auto& each) { return each.expired(); });
  const auto own = std::find_if(callbacks_.begin(), callbacks_.end(),
                                [&](const auto& present) { return present.get() == &callback; });
  return own != callbacks_.end() && initialized_.insert(*own).second;
}

void CallbackHandler::begin_run() {
  for (const auto& callback : callbacks_) callback->is_resumed_ = false;
}

std::vector<std::string> CallbackHandler::load_state_dicts(const StateDict& states) {
  std::vector<std::string> present;
  for (const auto& callback : callbacks_) {
    const std::string name = callback->name();
    present.push_back(name);
    if (!states.contains(name)) continue;
    try {
      callback->load_state_dict(states.get_dict(name));
    } catch (const Error& error) {
      throw Error(c10::str("the state of ", name, " cannot be loaded: ", error.what()));
    }
    callback->is_resumed_ = true;
  }
  std::vector<std::string> left_out;
  for (const auto& [name, state] : states.entries()) {
    const bool is_taken = std::find(present.begin(), present.end(), name) != present.end();
    if (!is_taken && !states.get_dict(name).empty()) left_out.push_back(name);
  }
  return left_out;
}

void CallbackHandler::load_rank_state_dicts(const StateDict& states) {
  for (const auto& callback : callbacks_) {
    const std::string name = callback->name();
    if (states.contains(name)) callback->load_rank_state_dict(states.get_dict(name));
  }
}

void CallbackHandler::call_event(std::string_view name, Trainer& trainer,
                                 const std::any& payload) const {
  for_each([&](Callback& callback) { callback.handle_event(name, trainer, payload); });
}

void CallbackHandler::call_exception(Trainer& trainer,
                                     std::exception_ptr exception) const noexcept {
  for_each([&](Callback& callback) {
    try {
      callback.on_exception(trainer, exception);
    } catch (...) {  // NOLINT(bugprone-empty-catch): the first exception is the one that counts
    }
  });
}

std::exception_ptr CallbackHandler::call_run_exit(Trainer& trainer) const noexcept {
  std::exception_ptr first;
  for_each([&](Callback& callback) {
    try {
      callback.on_run_exit(trainer);
    } catch (const StopTraining&) {  // NOLINT(bugprone-empty-catch): the run has ended already
    } catch (...) {
      if (!first) first = std::current_exception();
    }
  });
  return first;
}

}  // namespace linkboy
