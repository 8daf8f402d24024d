// The functions of libcuda that load and launch kernels at run time. They do not read their
// parameters, so CUDA's header, which declares these, is not included.

namespace {

constexpr int kNotSupported = 801;  // CUDA_ERROR_NOT_SUPPORTED

}  // namespace

extern "C" {

int cuFuncGetAttribute() { return kNotSupported; }
int cuFuncSetAttribute() { return kNotSupported; }
int cuLaunchKernel() { return kNotSupported; }
int cuLinkAddData_v2() { return kNotSupported; }
int cuLinkComplete() { return kNotSupported; }
int cuLinkCreate_v2() { return kNotSupported; }
int cuModuleGetFunction() { return kNotSupported; }
int cuModuleLoadData() { return kNotSupported; }
int cuModuleLoadDataEx() { return kNotSupported; }
int cuModuleUnload() { return kNotSupported; }
int cuOccupancyMaxActiveBlocksPerMultiprocessor() { return kNotSupported; }
int cuTensorMapEncodeTiled() { return kNotSupported; }

}  // extern "C"
