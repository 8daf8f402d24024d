#pragma once

#include <ATen/Context.h>
#include <ATen/core/Generator.h>
#include <ATen/core/Tensor.h>

#include <mutex>
#include <utility>
#include <vector>

namespace linkboy {

/// Saves the states of the default random number generators of the CPU and of a device, and
/// restores them in the destructor. Random numbers that are drawn in its scope do not change the
/// run.
class RngStateGuard {
 public:
  /// @param device  The device whose generator is saved in addition to that of the CPU.
  explicit RngStateGuard(c10::Device device) {
    keep(c10::Device(c10::kCPU));
    if (!device.is_cpu()) keep(device);
  }
  ~RngStateGuard() {
    for (auto& [generator, state] : states_) {
      const std::lock_guard<std::mutex> lock(generator.mutex());
      generator.set_state(state);
    }
  }
  RngStateGuard(const RngStateGuard&) = delete;
  RngStateGuard& operator=(const RngStateGuard&) = delete;

 private:
  void keep(c10::Device device) {
    at::Generator generator = at::globalContext().defaultGenerator(device);
    const std::lock_guard<std::mutex> lock(generator.mutex());
    states_.emplace_back(generator, generator.get_state());
  }

  std::vector<std::pair<at::Generator, at::Tensor>> states_;
};

}  // namespace linkboy
