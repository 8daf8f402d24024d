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

using RngStates = std::vector<std::pair<c10::Device, at::Tensor>>;

/// Returns the generator states of the CPU and of the inputs' devices.
RngStates rng_states_for(c10::ArrayRef<at::Tensor> inputs);

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

/// While an object of this class exists, the generators and autocast have the state of the forward
/// pass.
class RecomputationGuard {
 public:
  RecomputationGuard(const RngStates& rng, const AutocastState& autocast);
  ~RecomputationGuard();
  RecomputationGuard(const RecomputationGuard&) = delete;
  RecomputationGuard& operator=(const RecomputationGuard&) = delete;

 private:
  RngStates rng_before_;
  AutocastState autocast_before_;
};

}  // namespace linkboy
