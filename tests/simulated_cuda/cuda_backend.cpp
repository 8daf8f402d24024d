// The functions by which the operators use CUDA's interface.

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/cuda/CUDAGeneratorImpl.h>
#include <c10/cuda/CUDAStream.h>

#include "host_call.hpp"
#include "runtime_state.hpp"

namespace linkboy::simulated_cuda {

c10::DeviceType device_type() { return c10::kCUDA; }

Stream& current_stream(c10::Device device) {
  const cudaStream_t stream = c10::cuda::getCurrentCUDAStream(device.index());
  return stream_of(stream);
}

KernelGenerator generator_of_kernel(const std::optional<at::Generator>& given, c10::Device device) {
  constexpr uint64_t kNumbers = 4;  // most kernels use this many per thread
  auto* generator = at::get_generator_or_default<at::CUDAGeneratorImpl>(
      given, at::cuda::detail::getDefaultCUDAGenerator(device.index()));
  at::PhiloxCudaState state;
  {
    const std::lock_guard lock(generator->mutex_);
    state = generator->philox_cuda_state(kNumbers);
  }
  KernelGenerator result;
  if (state.captured_) {
    result.reads = {{state.seed_.ptr, sizeof(int64_t)}, {state.offset_.ptr, sizeof(int64_t)}};
  }
  result.make = [state] {
    constexpr uint64_t kSpread =
        0x9E3779B97F4A7C15;  // so that consecutive seeds produce different numbers
    uint64_t seed = state.seed_.val;
    uint64_t offset = state.offset_.val;
    if (state.captured_) {
      const Machine& machine = Machine::instance();
      seed = *static_cast<uint64_t*>(machine.bytes_of(state.seed_.ptr));
      offset =
          *static_cast<uint64_t*>(machine.bytes_of(state.offset_.ptr)) + state.offset_intragraph_;
    }
    return at::detail::createCPUGenerator(seed * kSpread + offset);
  };
  return result;
}

}  // namespace linkboy::simulated_cuda
