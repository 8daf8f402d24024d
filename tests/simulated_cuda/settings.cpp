#include "settings.hpp"

#include <cstdio>
#include <cstdlib>
#include <limits>
#include <sstream>

namespace linkboy::simulated_cuda {
namespace {

long read(const char* name, long otherwise, long most = std::numeric_limits<long>::max()) {
  const char* text = std::getenv(name);
  if (text == nullptr) return otherwise;
  char* end = nullptr;
  const long value = std::strtol(text, &end, 10);
  if (end == text || *end != '\0' || value < 0 || value > most) {
    std::fprintf(stderr, "simulated device: %s is '%s'; it must be a number from 0 to %ld\n", name,
                 text, most);
    std::_Exit(99);
  }
  return value;
}

/// Returns the numbers of the visible devices. As in CUDA, the list ends at the first entry that is
/// not the number of a device.
std::vector<int> visible_devices() {
  const long count = read("SIMULATED_CUDA_DEVICES", 1, 64);
  std::vector<int> devices;
  const char* visible = std::getenv("CUDA_VISIBLE_DEVICES");
  if (visible == nullptr) {
    for (int i = 0; i < count; ++i) devices.push_back(i);
    return devices;
  }
  std::istringstream list(visible);
  for (int device; list >> device && device >= 0 && device < count; list.ignore(1)) {
    devices.push_back(device);
  }
  return devices;
}

}  // namespace

const Settings& settings() {
  static const Settings read_once{
      .devices = visible_devices(),
      .memory = static_cast<std::size_t>(read("SIMULATED_CUDA_MEMORY_MIB", 2048)) << 20,
      .latency = std::chrono::microseconds(read("SIMULATED_CUDA_LATENCY_US", 300)),
      .is_strict = read("SIMULATED_CUDA_STRICT", 0) != 0,
      .has_network = read("SIMULATED_CUDA_NETWORK", 0) != 0};
  return read_once;
}

}  // namespace linkboy::simulated_cuda
