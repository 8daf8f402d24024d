#include "checkpoint/rng_state.hpp"

#include <ATen/Context.h>

namespace linkboy {

StateDict rng_state(c10::Device device) {
  StateDict state{{"cpu", rng_state_of(c10::Device("cpu"))}};
  if (!device.is_cpu()) state.set("device", rng_state_of(device));
  return state;
}

void set_rng_state(c10::Device device, const StateDict& state) {
  if (state.contains("cpu")) set_rng_state_of(c10::Device("cpu"), state.get_tensor("cpu"));
  if (device.is_cpu()) return;
  // Older states use the device names of the host that saved them.
  for (const std::string& name : {std::string("device"), device.str()}) {
    if (state.contains(name)) return set_rng_state_of(device, state.get_tensor(name));
  }
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
