// The functions of libcuda that LibTorch calls directly. It opens the driver's library by its name,
// which this library also has.

#include <cuda.h>

#include <cstdio>

#include "hardware.hpp"
#include "settings.hpp"

using linkboy::simulated_cuda::Machine;

extern "C" {

CUresult cuInit(unsigned) { return CUDA_SUCCESS; }

CUresult cuDriverGetVersion(int* version) {
  *version = CUDA_VERSION;
  return CUDA_SUCCESS;
}

CUresult cuDeviceGet(CUdevice* device, int index) {
  *device = index;
  const bool exists = index >= 0 && index < Machine::instance().num_devices();
  return exists ? CUDA_SUCCESS : CUDA_ERROR_INVALID_DEVICE;
}

CUresult cuDeviceGetName(char* name, int size, CUdevice) {
  std::snprintf(name, static_cast<std::size_t>(size), "Simulated CUDA device");
  return CUDA_SUCCESS;
}

CUresult cuDeviceGetUuid_v2(CUuuid* uuid, CUdevice device) {
  *uuid = {};
  uuid->bytes[0] = static_cast<char>(linkboy::simulated_cuda::settings().devices[device]);
  return CUDA_SUCCESS;
}

CUresult cuDeviceGetAttribute(int* value, CUdevice_attribute, CUdevice) {
  *value = 0;
  return CUDA_SUCCESS;
}

CUresult cuDevicePrimaryCtxGetState(CUdevice device, unsigned* flags, int* is_active) {
  *flags = 0;
  *is_active = Machine::instance().is_used(device) ? 1 : 0;
  return CUDA_SUCCESS;
}

CUresult cuDevicePrimaryCtxRetain(CUcontext* result, CUdevice) {
  // A single context is sufficient, because LibTorch only checks whether there is one.
  static int context = 0;
  *result = reinterpret_cast<CUcontext>(&context);
  return CUDA_SUCCESS;
}

CUresult cuGetErrorString(CUresult, const char** text) {
  *text = "not simulated";
  return CUDA_SUCCESS;
}

}  // extern "C"
