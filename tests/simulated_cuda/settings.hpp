#pragma once

#include <chrono>
#include <cstddef>
#include <vector>

namespace linkboy::simulated_cuda {

/// What the environment variables SIMULATED_CUDA_... say; the README describes them.
struct Settings {
  std::vector<int> devices;  // the numbers that those which the program sees have on the host
  std::size_t memory;        // of each device, in bytes
  std::chrono::microseconds latency;
  bool is_strict;
  bool has_network;
};

const Settings& settings();

}  // namespace linkboy::simulated_cuda
