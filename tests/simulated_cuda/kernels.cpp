// The functions by which programs compiled with nvcc register and launch kernels. They do not run
// any kernel. LibTorch's operators are replaced as a whole, so only an operator without a
// replacement launches a kernel here.

#include <cuda_runtime_api.h>

#include <cstdio>
#include <cstdlib>
#include <mutex>
#include <string>
#include <unordered_map>

#include "runtime_state.hpp"
#include "settings.hpp"

namespace linkboy::simulated_cuda {
namespace {

struct Names {
  std::mutex mutex;
  std::unordered_map<const void*, const char*> of_kernels;
};

Names& names() {
  static auto* names = new Names;  // libraries register first and unregister last
  return *names;
}

cudaError_t refuse(const void* kernel) {
  Names& known = names();
  const std::lock_guard lock(known.mutex);
  const auto name = known.of_kernels.find(kernel);
  std::fprintf(stderr, "simulated CUDA: a kernel was launched that is not simulated: %s\n",
               name == known.of_kernels.end() ? "without a name" : name->second);
  if (settings().is_strict) std::abort();
  return remember(cudaErrorNotSupported);
}

}  // namespace
}  // namespace linkboy::simulated_cuda

using namespace linkboy::simulated_cuda;

// nvcc generates calls of these functions. CUDA's public headers do not declare them.
// NOLINTBEGIN(bugprone-reserved-identifier)
extern "C" {

void** __cudaRegisterFatBinary(void*) {
  static void* handle = nullptr;
  return &handle;
}

void __cudaRegisterFatBinaryEnd(void**) {}
void __cudaUnregisterFatBinary(void**) {}
void __cudaRegisterVar(void**, char*, char*, const char*, int, std::size_t, int, int) {}

void __cudaRegisterFunction(void**, const char* kernel, char*, const char* name, int, uint3*,
                            uint3*, dim3*, dim3*, int*) {
  Names& known = names();
  const std::lock_guard lock(known.mutex);
  known.of_kernels[kernel] = name;
}

// The launch that follows is refused, so its configuration is not needed.
unsigned __cudaPushCallConfiguration(dim3, dim3, std::size_t, cudaStream_t) { return 0; }
cudaError_t __cudaPopCallConfiguration(dim3*, dim3*, std::size_t*, void*) { return cudaSuccess; }

cudaError_t __cudaGetKernel(cudaKernel_t* kernel, const void* function) {
  *kernel = static_cast<cudaKernel_t>(const_cast<void*>(function));
  return cudaSuccess;
}

cudaError_t __cudaLaunchKernel(cudaKernel_t kernel, dim3, dim3, void**, std::size_t, cudaStream_t) {
  return refuse(kernel);
}
// NOLINTEND(bugprone-reserved-identifier)

cudaError_t cudaLaunchKernel(const void* kernel, dim3, dim3, void**, std::size_t, cudaStream_t) {
  return refuse(kernel);
}

}  // extern "C"
