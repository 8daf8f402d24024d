// Used with a LibTorch without CUDA and with LINKBOY_NCCL=OFF.

#include "distributed/backends.hpp"
#include "linkboy/error.hpp"

namespace linkboy {

bool has_nccl() { return false; }

void choose_nccl_defaults() {}

c10::intrusive_ptr<c10d::Backend> make_nccl_backend(const BackendSetup&, c10::Device) {
  throw Error(
      "the backend is nccl, but linkboy was built without NCCL. Use gloo, or build linkboy with "
      "a LibTorch for CUDA and LINKBOY_NCCL=ON.");
}

}  // namespace linkboy
