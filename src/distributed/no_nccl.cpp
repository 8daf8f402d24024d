// For a LibTorch without CUDA.

#include "distributed/backends.hpp"
#include "linkboy/error.hpp"

namespace linkboy {

bool has_nccl() { return false; }

c10::intrusive_ptr<c10d::Backend> make_nccl_backend(const BackendSetup&, c10::Device) {
  throw Error("the backend is nccl, but linkboy was built with a LibTorch without CUDA. Use gloo.");
}

}  // namespace linkboy
