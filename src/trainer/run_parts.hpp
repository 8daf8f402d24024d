#pragma once

#include <optional>

#include "linkboy/checkpoint/state_dict.hpp"

namespace linkboy {

/// The parts of a training state that the end of an epoch changes.
struct RunParts {
  StateDict common{};   // the same on all processes
  StateDict of_rank{};  // different on each process
  std::optional<StateDict> scheduler{};
  StateDict registered_schedulers{};
  StateDict buffers{};  // keyed by their part of the checkpoint; of a cut epoch also the weights
};

}  // namespace linkboy
