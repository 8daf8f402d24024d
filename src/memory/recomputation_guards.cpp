// Restores autocast, generators and buffers to their states in the forward pass, and back again.

#include "memory/recomputation_guards.hpp"

#include <ATen/ATen.h>
#include <ATen/DeviceAccelerator.h>
#include <ATen/autocast_mode.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>

#include "checkpoint/rng_state.hpp"

namespace linkboy {

AutocastState::AutocastState() : cache_enabled_(at::autocast::is_autocast_cache_enabled()) {
  devices_.push_back({.type = at::kCPU});
  if (const auto type = at::accelerator::getAccelerator()) devices_.push_back({.type = *type});
  for (auto& device : devices_) {
    device.enabled = at::autocast::is_autocast_enabled(device.type);
    device.dtype = at::autocast::get_autocast_dtype(device.type);
  }
}

void AutocastState::apply() const {
  for (const auto& device : devices_) {
    at::autocast::set_autocast_enabled(device.type, device.enabled);
    at::autocast::set_autocast_dtype(device.type, device.dtype);
  }
  at::autocast::set_autocast_cache_enabled(cache_enabled_);
}

RngStates rng_states_for(c10::ArrayRef<at::Tensor> inputs) {
  RngStates states{{c10::Device(at::kCPU), {}}};
  for (const auto& input : inputs) {
    if (!input.defined() || input.is_cpu()) continue;
    const auto same = [&](const auto& state) { return state.first == input.device(); };
    if (std::ranges::none_of(states, same)) states.emplace_back(input.device(), at::Tensor());
  }
  for (auto& [device, state] : states) state = rng_state_of(device);
  return states;
}

BufferGuard::BufferGuard(const std::vector<at::Tensor>& buffers) {
  const at::NoGradGuard no_grad;
  for (const auto& buffer : buffers) {
    if (buffer.defined()) before_.emplace_back(buffer, buffer.clone());
  }
}

BufferGuard::~BufferGuard() {
  const at::NoGradGuard no_grad;
  // Uses variable_data, because a new version of the buffer would make the backward pass of its
  // other uses fail.
  for (const auto& [buffer, value] : before_) buffer.variable_data().copy_(value);
}

RecomputationGuard::RecomputationGuard(const RngStates& rng, const AutocastState& autocast)
    : rng_before_(rng) {
  for (auto& [device, state] : rng_before_) state = rng_state_of(device);
  for (const auto& [device, state] : rng) set_rng_state_of(device, state);
  at::autocast::increment_nesting();
  autocast.apply();
}

RecomputationGuard::~RecomputationGuard() {
  // Outside of any autocast scope, nothing else clears the cache, and its weights would become
  // outdated.
  if (at::autocast::decrement_nesting() == 0) at::autocast::clear_cache();
  autocast_before_.apply();
  for (const auto& [device, state] : rng_before_) set_rng_state_of(device, state);
}

}  // namespace linkboy
