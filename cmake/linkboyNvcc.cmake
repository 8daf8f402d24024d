# Include this file before find_package(Torch). A LibTorch with CUDA searches for the CUDA toolkit in several ways,
# which can find different toolkits. This file selects one toolkit for all of them: the first of CMAKE_CUDA_COMPILER,
# CUDACXX, CUDA_HOME, CUDA_PATH, the nvcc on PATH, and /usr/local/cuda.
#
# linkboy has no device code and does not need a toolkit. If there is none, or if LINKBOY_CUDA_TOOLKIT is OFF (for a
# toolkit that LibTorch or the compiler rejects), this file declares the target torch::cudart. LibTorch then does not
# search for CUDA, and linkboyTorchLibraries.cmake completes the target. Sets linkboy_nvcc to the path of nvcc or to a
# false value.
set(linkboy_nvcc "${CMAKE_CUDA_COMPILER}")
if(NOT linkboy_nvcc)
  set(linkboy_nvcc "$ENV{CUDACXX}")
endif()
if(DEFINED LINKBOY_CUDA_TOOLKIT AND NOT LINKBOY_CUDA_TOOLKIT)
  set(linkboy_nvcc linkboy_nvcc-NOTFOUND)
elseif(linkboy_nvcc)
  set(linkboy_given_nvcc "${linkboy_nvcc}")
  get_filename_component(linkboy_nvcc "${linkboy_given_nvcc}" PROGRAM)  # CUDACXX may have arguments
  if(NOT linkboy_nvcc)
    message(FATAL_ERROR "CMAKE_CUDA_COMPILER or CUDACXX is '${linkboy_given_nvcc}', which is not a program. "
      "Set it to the path of nvcc, or unset it: linkboy needs no CUDA compiler.")
  endif()
else()
  unset(linkboy_nvcc)
  find_program(linkboy_nvcc nvcc NO_CACHE NO_DEFAULT_PATH
    PATHS ENV CUDA_HOME ENV CUDA_PATH ENV PATH /usr/local/cuda PATH_SUFFIXES bin)
endif()

if(linkboy_nvcc)
  if(NOT CMAKE_CUDA_COMPILER AND "$ENV{CUDACXX}" STREQUAL "")
    set(ENV{CUDACXX} "${linkboy_nvcc}")
  endif()
  # LibTorch's FindCUDA searches in another order, and two different toolkits are an error.
  cmake_path(GET linkboy_nvcc PARENT_PATH linkboy_toolkit)
  cmake_path(GET linkboy_toolkit PARENT_PATH linkboy_toolkit)
  if(NOT CUDA_TOOLKIT_ROOT_DIR AND EXISTS "${linkboy_toolkit}/include/cuda.h")
    set(CUDA_TOOLKIT_ROOT_DIR "${linkboy_toolkit}")
  endif()
elseif(NOT TARGET torch::cudart)
  if(NOT linkboy_FIND_QUIETLY)
    message(STATUS "linkboy uses no CUDA toolkit; CUDA's headers and libraries are LibTorch's, if it has CUDA")
  endif()
  add_library(torch::cudart INTERFACE IMPORTED)
endif()
