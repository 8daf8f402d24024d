#include "linkboy/callback.hpp"

#include <c10/util/Type.h>

#include <algorithm>
#include <typeinfo>

#include "linkboy/error.hpp"
#include "linkboy/text_options.hpp"

namespace linkboy {
namespace {

std::string name_of(const Callback& callback) { return c10::demangle(typeid(callback).name()); }

}  // namespace

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
  LINKBOY_CHECK(callback != nullptr, "a callback is null; give an object.");
  for (const auto& present : callbacks_) {
    const Callback& old_one = *present;
    const Callback& new_one = *callback;
    if (typeid(old_one) != typeid(new_one)) continue;
    throw Error(c10::str("a callback of type ", name_of(*callback),
                         " is there already; each type may be given once. The callbacks are: ",
                         join_with_commas(names()), "."));
  }
  const auto later = std::upper_bound(
      callbacks_.begin(), callbacks_.end(), callback,
      [](const auto& added, const auto& present) { return added->order() < present->order(); });
  callbacks_.insert(later, std::move(callback));
}

std::vector<std::string> CallbackHandler::remove_if(
    const std::function<bool(const Callback&)>& is_unwanted) {
  std::vector<std::string> removed;
  std::erase_if(callbacks_, [&](const std::shared_ptr<Callback>& callback) {
    if (!is_unwanted(*callback)) return false;
    removed.push_back(name_of(*callback));
    return true;
  });
  return removed;
}

std::vector<std::string> CallbackHandler::names() const {
  std::vector<std::string> names;
  for (const auto& callback : callbacks_) names.push_back(name_of(*callback));
  return names;
}

void CallbackHandler::call_event(std::string_view name, Trainer& trainer,
                                 const std::any& payload) const {
  for (std::size_t i = 0; i < callbacks_.size(); ++i) {
    callbacks_[i]->handle_event(name, trainer, payload);
  }
}

void CallbackHandler::call_exception(Trainer& trainer,
                                     std::exception_ptr exception) const noexcept {
  for (std::size_t i = 0; i < callbacks_.size(); ++i) {
    try {
      callbacks_[i]->on_exception(trainer, exception);
    } catch (...) {  // NOLINT(bugprone-empty-catch): the first exception is the one that counts
    }
  }
}

}  // namespace linkboy
