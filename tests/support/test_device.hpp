#pragma once

#include <cstdlib>
#include <string>

namespace linkboy::testing {

/// Where the toy models train: on what the environment variable LINKBOY_TEST_DEVICE names, or the
/// CPU.
inline std::string test_device() {
  const char* device = std::getenv("LINKBOY_TEST_DEVICE");
  return device != nullptr ? device : "cpu";
}

}  // namespace linkboy::testing
