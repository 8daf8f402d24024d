#pragma once

#include <memory>

#include "linkboy/callback.hpp"

namespace linkboy::testing {

/// Loads `state` into a callback as at the beginning of a resumed run.
inline void load_for_resume(Callback& callback, const StateDict& state) {
  CallbackHandler handler({std::shared_ptr<Callback>(std::shared_ptr<void>(), &callback)});
  StateDict states;
  states.set(callback.name(), state);
  handler.load_state_dicts(states);
}

}  // namespace linkboy::testing
