#include <torch/csrc/distributed/c10d/ProcessGroupNCCL.hpp>

#include "distributed/backends.hpp"

namespace linkboy {

bool has_nccl() { return true; }

c10::intrusive_ptr<c10d::Backend> make_nccl_backend(const BackendSetup& setup, c10::Device device) {
  auto options = c10d::ProcessGroupNCCL::Options::create();
  options->timeout = setup.timeout;
  auto backend = c10::make_intrusive<c10d::ProcessGroupNCCL>(setup.store, setup.rank, setup.size,
                                                             std::move(options));
  backend->setBoundDeviceId(device);
  return backend;
}

}  // namespace linkboy
