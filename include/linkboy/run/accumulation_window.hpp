#pragma once

#include <cstdint>

namespace linkboy {

/// Position of a micro-step in its accumulation window. A window consists of the micro-steps whose
/// gradients are accumulated for one update.
struct AccumulationWindow {
  /// Index of the micro-step in the window, from 0.
  int64_t index = 0;
  /// Number of micro-steps in the window; the last window of an epoch may be shorter than the
  /// others.
  int64_t length = 1;

  /// Whether the micro-step is the last one of its window.
  bool is_complete() const { return index + 1 == length; }
};

}  // namespace linkboy
