#pragma once

#include <cstdlib>
#include <string>

namespace linkboy::testing {

/// Returns the device on which the toy models train: the value of the environment variable
/// LINKBOY_TEST_DEVICE, otherwise the CPU.
inline std::string test_device() {
  const char* device = std::getenv("LINKBOY_TEST_DEVICE");
  return device != nullptr ? device : "cpu";
}

}  // namespace linkboy::testing
