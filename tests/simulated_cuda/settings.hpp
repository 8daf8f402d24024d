#pragma once

#include <chrono>
#include <cstddef>

namespace linkboy::simulated_cuda {

/// What the environment variables SIMULATED_CUDA_... say; the README describes them.
struct Settings {
  int num_devices;
  std::size_t memory;  // of each device, in bytes
  std::chrono::microseconds latency;
  bool is_strict;
};

const Settings& settings();

}  // namespace linkboy::simulated_cuda
