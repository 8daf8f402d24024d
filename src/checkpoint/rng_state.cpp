// Saves and restores LibTorch's generators, and seeds those of ranks without a saved state.

#include "checkpoint/rng_state.hpp"

#include <ATen/ATen.h>
#include <ATen/Context.h>

#include <algorithm>

namespace linkboy {
namespace {

/// FNV-1a.
uint64_t hash_of(const at::Tensor& state, uint64_t hash) {
  const at::Tensor bytes = state.contiguous();
  const auto* data = static_cast<const uint8_t*>(bytes.const_data_ptr());
  for (std::size_t i = 0; i < bytes.nbytes(); ++i) hash = (hash ^ data[i]) * 0x100000001b3;
  return hash;
}

void seed(c10::Device device, uint64_t seed) {
  at::Generator generator = at::globalContext().defaultGenerator(device);
  const std::lock_guard lock(generator.mutex());
  generator.set_current_seed(seed);
}

}  // namespace

StateDict rng_state(c10::Device device) {
  StateDict state{{"cpu", rng_state_of(c10::Device("cpu"))}};
  if (!device.is_cpu()) state.set("device", rng_state_of(device));
  return state;
}

void set_rng_state(c10::Device device, const StateDict& state) {
  if (state.contains("cpu")) set_rng_state_of(c10::Device("cpu"), state.get_tensor("cpu"));
  if (device.is_cpu()) return;
  if (state.contains("device")) set_rng_state_of(device, state.get_tensor("device"));
}

void set_rng_state_of_additional_rank(c10::Device device, const std::vector<StateDict>& states,
                                      int64_t rank) {
  std::vector<at::Tensor> of_cpu;
  of_cpu.reserve(states.size());
  for (const StateDict& state : states) of_cpu.push_back(state.get_tensor("cpu"));
  const bool are_equal =
      of_cpu.size() > 1 && std::all_of(of_cpu.begin(), of_cpu.end(), [&](const at::Tensor& other) {
        return at::equal(other, of_cpu.front());
      });
  if (are_equal) return set_rng_state(device, states.back());
  uint64_t hash = 0xcbf29ce484222325;
  for (const at::Tensor& state : of_cpu) hash = hash_of(state, hash);
  // LibTorch's CPU generator uses the lower 32 bits, so ranks differ in these.
  hash = (hash ^ (hash >> 32)) + static_cast<uint64_t>(rank);
  seed(c10::Device("cpu"), hash);
  if (!device.is_cpu()) seed(device, hash);
}

at::Tensor rng_state_of(c10::Device device) {
  at::Generator generator = at::globalContext().defaultGenerator(device);
  const std::lock_guard lock(generator.mutex());
  return generator.get_state();
}

void set_rng_state_of(c10::Device device, const at::Tensor& state) {
  at::Generator generator = at::globalContext().defaultGenerator(device);
  const std::lock_guard lock(generator.mutex());
  generator.set_state(state);
}

}  // namespace linkboy
