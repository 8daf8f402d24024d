#pragma once

#include <c10/core/Device.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include <chrono>
#include <string>

namespace linkboy {

/// The properties of a group that a backend needs.
struct BackendSetup {
  c10::intrusive_ptr<c10d::Store> store;  // used only by this group
  int rank = 0;
  int size = 1;
  std::chrono::milliseconds timeout{0};
};

/// Makes a backend that transfers tensors between CPUs by TCP.
/// @param address  The address of this host that the other ranks can reach. If empty, uses that of
///        the interface GLOO_SOCKET_IFNAME, or the one to which the host's name resolves.
c10::intrusive_ptr<c10d::Backend> make_gloo_backend(const BackendSetup& setup,
                                                    const std::string& address);

/// Whether linkboy and its LibTorch were built with NCCL.
bool has_nccl();

/// Sets environment variables of LibTorch to the values that linkboy needs, unless the user has set
/// them. Call it before threads start that read the environment.
void choose_nccl_defaults();

/// Makes a backend that transfers tensors between CUDA devices.
/// @throws Error if linkboy was built without NCCL.
c10::intrusive_ptr<c10d::Backend> make_nccl_backend(const BackendSetup& setup, c10::Device device);

}  // namespace linkboy
