#pragma once

#include <memory>

#include "linkboy/callback.hpp"

namespace linkboy::testing {

/// Returns the state of a callback as a training state contains it.
inline StateDict saved_state_of(const Callback& callback) {
  StateDict state = callback.state_dict();
  const StateDict of_files = callback.file_state_dict();
  for (const auto& [key, value] : of_files.entries()) state.set(key, value);
  return state;
}

/// Loads `state` into a callback as at the beginning of a resumed run.
inline void load_for_resume(Callback& callback, const StateDict& state) {
  CallbackHandler handler({std::shared_ptr<Callback>(std::shared_ptr<void>(), &callback)});
  StateDict states;
  states.set(callback.name(), state);
  handler.load_state_dicts(states);
}

}  // namespace linkboy::testing
