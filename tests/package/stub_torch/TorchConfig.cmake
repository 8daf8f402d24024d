# Looks like LibTorch to CMake, without its libraries.
message(WARNING "LibTorch warns")
get_filename_component(prefix "${CMAKE_CURRENT_LIST_DIR}/../../.." ABSOLUTE)
if(NOT DEFINED TORCH_CUDA_ARCH_LIST)
  set(TORCH_CUDA_ARCH_LIST "$ENV{TORCH_CUDA_ARCH_LIST}")
endif()
add_library(torch INTERFACE IMPORTED)
target_include_directories(torch INTERFACE "${prefix}/include")
if(EXISTS "${prefix}/lib/libc10_cuda.so")
  add_library(torch_cuda INTERFACE IMPORTED)
  add_library(c10_cuda SHARED IMPORTED)
  set_target_properties(c10_cuda PROPERTIES IMPORTED_CONFIGURATIONS RELEASE
    IMPORTED_LOCATION_RELEASE "${prefix}/lib/libc10_cuda.so")
endif()
