// The functions of libcuda that LibTorch calls directly. It opens the driver's library by its name,
// which this library also has.

#include <cuda.h>

#include <cstdio>

#include "hardware.hpp"
#include "settings.hpp"

namespace {

int num_devices() { return linkboy::simulated_cuda::Machine::instance().num_devices(); }

// A single context is sufficient, because LibTorch only checks whether there is one.
CUcontext context() {
  static int it = 0;
  return reinterpret_cast<CUcontext>(&it);
}

}  // namespace

extern "C" {

CUresult cuInit(unsigned) { return CUDA_SUCCESS; }

CUresult cuDriverGetVersion(int* version) {
  *version = CUDA_VERSION;
  return CUDA_SUCCESS;
}

CUresult cuDeviceGetCount(int* count) {
  *count = num_devices();
  return CUDA_SUCCESS;
}

CUresult cuDeviceGet(CUdevice* device, int index) {
  *device = index;
  return index >= 0 && index < num_devices() ? CUDA_SUCCESS : CUDA_ERROR_INVALID_DEVICE;
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
  *is_active = linkboy::simulated_cuda::Machine::instance().is_used(device) ? 1 : 0;
  return CUDA_SUCCESS;
}

CUresult cuDevicePrimaryCtxRetain(CUcontext* result, CUdevice) {
  *result = context();
  return CUDA_SUCCESS;
}

CUresult cuCtxGetCurrent(CUcontext* result) {
  *result = context();
  return CUDA_SUCCESS;
}

CUresult cuCtxSetCurrent(CUcontext) { return CUDA_SUCCESS; }

CUresult cuPointerGetAttribute(void*, CUpointer_attribute, CUdeviceptr) {
  return CUDA_ERROR_NOT_SUPPORTED;
}

CUresult cuGetErrorString(CUresult, const char** text) {
  *text = "not simulated";
  return CUDA_SUCCESS;
}

}  // extern "C"
