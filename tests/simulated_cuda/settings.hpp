#pragma once

#include <chrono>
#include <cstddef>
#include <vector>

namespace linkboy::simulated_cuda {

/// The values of the environment variables SIMULATED_CUDA_..., which the README describes.
struct Settings {
  std::vector<int> devices;  // numbers on the host of the devices that the program sees
  std::size_t memory;        // of each device, in bytes
  std::chrono::microseconds latency;
  bool is_strict;
  bool has_network;
};

const Settings& settings();

}  // namespace linkboy::simulated_cuda
