#pragma once

#include <memory>

#include "linkboy/callback.hpp"

namespace linkboy::testing {

/// Gives a callback the state with which a run that is resumed begins.
inline void load_for_resume(Callback& callback, const StateDict& state) {
  CallbackHandler handler({std::shared_ptr<Callback>(std::shared_ptr<void>(), &callback)});
  StateDict states;
  states.set(callback.name(), state);
  handler.load_state_dicts(states);
}

}  // namespace linkboy::testing
