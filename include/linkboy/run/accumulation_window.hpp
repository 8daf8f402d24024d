#pragma once

#include <cstdint>

namespace linkboy {

/// The place of a micro-step among those whose gradients make one update.
struct AccumulationWindow {
  /// From 0.
  int64_t index = 0;
  /// Micro-steps of the window; the last window of an epoch may have fewer than the others.
  int64_t length = 1;

  /// Whether the micro-step is the last of its window.
  bool is_complete() const { return index + 1 == length; }
};

}  // namespace linkboy
