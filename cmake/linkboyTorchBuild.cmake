# Describes the target torch, even if another CMake directory found it. Sets
#   TORCH_INSTALL_PREFIX    as LibTorch does in the directory that finds it
#   linkboy_torch_version   e.g. 2.11
#   linkboy_torch_build     e.g. "2.11 for CUDA 13". LibTorch's C++ interface is stable only within such a
#                           build, that is, between patch releases.
# and the variables that linkboyTorchLibraries.cmake sets.
function(linkboy_describe_torch)
  get_target_property(include_folders torch INTERFACE_INCLUDE_DIRECTORIES)
  list(GET include_folders 0 include_folder)
  cmake_path(GET include_folder PARENT_PATH prefix)

  set(version "${Torch_VERSION}")
  if(NOT version AND EXISTS "${Torch_DIR}/TorchConfigVersion.cmake")
    include("${Torch_DIR}/TorchConfigVersion.cmake")
    set(version "${PACKAGE_VERSION}")
  endif()
  if(NOT version MATCHES "^[0-9]+\\.[0-9]+")
    message(FATAL_ERROR "The version of LibTorch in ${prefix} is unknown. Find it with find_package(Torch), "
      "or set Torch_DIR to the folder of its TorchConfig.cmake.")
  endif()
  set(version "${CMAKE_MATCH_0}")

  set(device "the CPU")
  if(TARGET torch_cuda)
    set(device "CUDA")
    get_target_property(library c10_cuda LOCATION)
    file(STRINGS "${library}" runtime REGEX "^libcudart.*\\.so\\.[0-9]" LIMIT_COUNT 1)
    if(runtime MATCHES "\\.so\\.([0-9]+)")
      set(device "CUDA ${CMAKE_MATCH_1}")
    endif()
  endif()
  set(TORCH_INSTALL_PREFIX "${prefix}" PARENT_SCOPE)
  set(linkboy_torch_version "${version}" PARENT_SCOPE)
  set(linkboy_torch_build "${version} for ${device}" PARENT_SCOPE)
endfunction()

linkboy_describe_torch()
include("${CMAKE_CURRENT_LIST_DIR}/linkboyTorchLibraries.cmake")
