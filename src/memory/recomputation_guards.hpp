#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include <utility>
#include <vector>

// Guards that give a recomputation the state of the forward pass and restore the previous state
// when they are destroyed.

namespace linkboy {

/// The autocast state of a thread, which can be applied again.
class AutocastState {
 public:
  /// Copies the state of this thread.
  AutocastState();

  void apply() const;

 private:
  struct Device {
    c10::DeviceType type;
    bool enabled = false;
    at::ScalarType dtype = at::kFloat;
  };
  std::vector<Device> devices_;
  bool cache_enabled_;
};

class AutocastGuard {
 public:
  explicit AutocastGuard(const AutocastState& state);
  ~AutocastGuard();
  AutocastGuard(const AutocastGuard&) = delete;
  AutocastGuard& operator=(const AutocastGuard&) = delete;

 private:
  AutocastState before_;
};

using RngStates = std::vector<std::pair<c10::Device, at::Tensor>>;

/// Returns the generator states of the CPU and of the inputs' devices.
RngStates rng_states_for(c10::ArrayRef<at::Tensor> inputs);

class RngGuard {
 public:
  explicit RngGuard(const RngStates& states);
  ~RngGuard();
  RngGuard(const RngGuard&) = delete;
  RngGuard& operator=(const RngGuard&) = delete;

 private:
  RngStates before_;
};

/// Saves the contents of the buffers and restores them in its destructor, because the recomputation
/// may change them.
class BufferGuard {
 public:
  explicit BufferGuard(const std::vector<at::Tensor>& buffers);
  ~BufferGuard();
  BufferGuard(const BufferGuard&) = delete;
  BufferGuard& operator=(const BufferGuard&) = delete;

 private:
  std::vector<std::pair<at::Tensor, at::Tensor>> before_;
};

}  // namespace linkboy
