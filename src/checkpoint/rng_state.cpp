#include "checkpoint/rng_state.hpp"

#include <ATen/Context.h>
#include <torch/cuda.h>

#include "linkboy/error.hpp"

namespace linkboy {
namespace {

std::vector<std::pair<std::string, c10::Device>> devices() {
  std::vector<std::pair<std::string, c10::Device>> all{{"cpu", c10::Device("cpu")}};
  for (c10::DeviceIndex i = 0; i < static_cast<c10::DeviceIndex>(torch::cuda::device_count());
       ++i) {
    const c10::Device device(c10::DeviceType::CUDA, i);
    all.emplace_back(device.str(), device);
  }
  return all;
}

}  // namespace

StateDict rng_state() {
  StateDict state;
  for (const auto& [name, device] : devices()) state.set(name, rng_state_of(device));
  return state;
}

void set_rng_state(const StateDict& state) {
  const auto here = devices();
  LINKBOY_CHECK(state.size() <= here.size(), "the training state has random number generators of ",
                state.size() - 1, " CUDA devices, but there are ", here.size() - 1,
                " here; a run can go on only where there are as many.");
  for (const auto& [name, device] : here) {
    if (state.contains(name)) set_rng_state_of(device, state.get_tensor(name));
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
