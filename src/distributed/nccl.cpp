// Creates NCCL's backend, and lets linkboy report a lost rank before LibTorch's watchdog does.

#include <torch/csrc/distributed/c10d/ProcessGroupNCCL.hpp>

#include <algorithm>
#include <cstdlib>
#include <initializer_list>

#include "distributed/backends.hpp"

namespace linkboy {
namespace {

/// LibTorch's own watchdog waits this much longer than linkboy, whose error names a rank.
constexpr std::chrono::minutes kAfterLinkboy{1};

bool is_any_set(std::initializer_list<const char*> names) {
  return std::any_of(names.begin(), names.end(),
                     [](const char* name) { return std::getenv(name) != nullptr; });
}

void set(const char* name, const char* value) { ::setenv(name, value, /*overwrite=*/0); }

}  // namespace

bool has_nccl() { return true; }

void choose_nccl_defaults() {
  // linkboy reports the rank that failed, and then aborts the collectives itself.
  if (!is_any_set({"TORCH_NCCL_ASYNC_ERROR_HANDLING", "NCCL_ASYNC_ERROR_HANDLING"})) {
    set("TORCH_NCCL_ASYNC_ERROR_HANDLING", "0");
  }
  // An error would wait one minute for the flight recorder's file, or forever if rank 0 is stopped.
  if (!is_any_set({"TORCH_FR_BUFFER_SIZE", "TORCH_NCCL_TRACE_BUFFER_SIZE"})) {
    set("TORCH_NCCL_DUMP_ON_TIMEOUT", "0");
    set("TORCH_NCCL_WAIT_TIMEOUT_DUMP_MILSEC", "250");
  }
}

c10::intrusive_ptr<c10d::Backend> make_nccl_backend(const BackendSetup& setup, c10::Device device) {
  auto options = c10d::ProcessGroupNCCL::Options::create();
  options->timeout = setup.timeout + kAfterLinkboy;
  auto backend = c10::make_intrusive<c10d::ProcessGroupNCCL>(setup.store, setup.rank, setup.size,
                                                             std::move(options));
  backend->setBoundDeviceId(device);
  return backend;
}

}  // namespace linkboy
