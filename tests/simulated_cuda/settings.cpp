#include "settings.hpp"

#include <cstdio>
#include <cstdlib>

namespace linkboy::simulated_cuda {
namespace {

long read(const char* name, long otherwise) {
  const char* text = std::getenv(name);
  if (text == nullptr) return otherwise;
  char* end = nullptr;
  const long value = std::strtol(text, &end, 10);
  if (end == text || *end != '\0' || value < 0) {
    std::fprintf(stderr, "simulated CUDA: %s is '%s'; it must be a number of at least 0\n", name,
                 text);
    std::_Exit(99);
  }
  return value;
}

}  // namespace

const Settings& settings() {
  static const Settings read_once{
      .num_devices = static_cast<int>(read("SIMULATED_CUDA_DEVICES", 1)),
      .memory = static_cast<std::size_t>(read("SIMULATED_CUDA_MEMORY_MIB", 2048)) << 20,
      .latency = std::chrono::microseconds(read("SIMULATED_CUDA_LATENCY_US", 300)),
      .is_strict = read("SIMULATED_CUDA_STRICT", 0) != 0};
  return read_once;
}

}  // namespace linkboy::simulated_cuda
