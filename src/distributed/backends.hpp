// The backend for CUDA devices. no_nccl.cpp replaces nccl.cpp in some builds.

#pragma once

#include <c10/core/Device.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include <chrono>

namespace linkboy {

/// The properties of a group that a backend needs.
struct BackendSetup {
  c10::intrusive_ptr<c10d::Store> store;  // used only by this group
  int rank = 0;
  int size = 1;
  std::chrono::milliseconds timeout{0};
};

/// Whether linkboy and its LibTorch were built with NCCL.
bool has_nccl();

/// Sets environment variables of LibTorch to the values that linkboy needs, unless the user has set
/// them. Call it before you start threads that read the environment.
void choose_nccl_defaults();

/// Creates a backend that transfers tensors between CUDA devices.
/// @throws Error if linkboy was built without NCCL.
c10::intrusive_ptr<c10d::Backend> make_nccl_backend(const BackendSetup& setup, c10::Device device);

}  // namespace linkboy
