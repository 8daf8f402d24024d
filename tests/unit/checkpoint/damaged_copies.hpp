// Damaged copies of a file, which a reader must refuse or read without a crash.

#pragma once

#include <functional>
#include <random>
#include <string>

#include "linkboy/error.hpp"

namespace linkboy::testing {

/// Returns whether `read` accepts the bytes: does not throw an Error.
inline bool accepts(const std::function<void(const std::string&)>& read, const std::string& bytes) {
  try {
    read(bytes);
    return true;
  } catch (const Error&) {
    return false;
  }
}

/// Calls `read` with copies of `good` in which 1 to 3 bytes are changed. Returns how many of the
/// copies it refuses.
inline int num_refused(const std::function<void(const std::string&)>& read, const std::string& good,
                       int num_copies) {
  std::mt19937 random(1);
  int refused = 0;
  for (int i = 0; i < num_copies; ++i) {
    std::string bad = good;
    const auto num_changes = 1 + random() % 3;
    for (std::size_t j = 0; j < num_changes; ++j) {
      bad[random() % bad.size()] = static_cast<char>(random());
    }
    refused += accepts(read, bad) ? 0 : 1;
  }
  return refused;
}

}  // namespace linkboy::testing
