#pragma once

#include <c10/core/Device.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include <chrono>
#include <string>

namespace linkboy {

/// What a backend needs to know of its group.
struct BackendSetup {
  c10::intrusive_ptr<c10d::Store> store;  // of this group alone
  int rank = 0;
  int size = 1;
  std::chrono::milliseconds timeout{0};
};

/// Moves tensors between the memories of CPUs, by TCP.
/// @param address  Of this host, which the other ranks can reach; empty for GLOO_SOCKET_IFNAME's,
///        or what the host's name resolves to.
c10::intrusive_ptr<c10d::Backend> make_gloo_backend(const BackendSetup& setup,
                                                    const std::string& address);

/// Whether linkboy and its LibTorch were built with NCCL.
bool has_nccl();

/// Sets those of LibTorch's environment variables that linkboy needs otherwise than LibTorch, if
/// the user has not set them. Before threads that read the environment are started.
void choose_nccl_defaults();

/// Moves tensors between CUDA devices. @throws Error without NCCL.
c10::intrusive_ptr<c10d::Backend> make_nccl_backend(const BackendSetup& setup, c10::Device device);

}  // namespace linkboy
