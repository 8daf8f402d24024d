# Tests that cmake/linkboyNvcc.cmake selects the first toolkit of CMAKE_CUDA_COMPILER, CUDACXX, CUDA_HOME,
# CUDA_PATH, PATH and /usr/local/cuda, and that it declares torch::cudart if none of them has an nvcc or
# LINKBOY_CUDA_TOOLKIT is OFF.
#   cmake -D SOURCE=... -D WORK=... -P toolkit_search.cmake
#
# WORK/root represents the root of the file system, so that the toolkits of this machine are ignored.
cmake_minimum_required(VERSION 3.25)
set(root "${WORK}/root")
set(CMAKE_FIND_ROOT_PATH "${root}")
set(CMAKE_FIND_ROOT_PATH_MODE_PROGRAM ONLY)

function(add_library target)  # scripts do not have targets
  set(declared "${target}" PARENT_SCOPE)
endfunction()

# Calls linkboyNvcc.cmake with the environment variables NAME=VALUE and with CMAKE_CUDA_COMPILER set to
# `compiler`. It must choose the toolkit in `expected`; if that is empty, no toolkit.
function(check expected)
  foreach(name IN ITEMS CUDACXX CUDA_HOME CUDA_PATH PATH)
    set(ENV{${name}} "")
  endforeach()
  foreach(assignment IN LISTS ARGN)
    string(REGEX MATCH "^([^=]*)=(.*)$" assignment "${assignment}")
    set(ENV{${CMAKE_MATCH_1}} "${CMAKE_MATCH_2}")
  endforeach()
  set(CMAKE_CUDA_COMPILER "${compiler}")
  include("${SOURCE}/cmake/linkboyNvcc.cmake")
  set(result "${linkboy_nvcc}|${CUDA_TOOLKIT_ROOT_DIR}|${declared}")
  if(expected)
    set(wanted "${expected}/bin/nvcc|${expected}|")
  else()
    set(wanted "linkboy_nvcc-NOTFOUND||torch::cudart")
  endif()
  if(NOT result STREQUAL wanted)
    message(FATAL_ERROR "compiler '${compiler}', ${ARGN}: got ${result}, expected ${wanted}")
  endif()
  if(expected AND NOT compiler AND NOT "$ENV{CUDACXX}" MATCHES "^${expected}/bin/nvcc")
    message(FATAL_ERROR "CUDACXX, which names CMake's CUDA compiler, is '$ENV{CUDACXX}'")
  endif()
endfunction()

file(REMOVE_RECURSE "${WORK}")
check("")
check("" CUDA_HOME=/toolkits/home CUDA_PATH=/toolkits/path PATH=/toolkits/search/bin)  # do not exist

foreach(toolkit IN ITEMS toolkits/compiler toolkits/cxx toolkits/home toolkits/path toolkits/search
    usr/local/cuda)
  file(WRITE "${root}/${toolkit}/bin/nvcc" "#!/bin/sh\n")
  file(WRITE "${root}/${toolkit}/include/cuda.h" "")
  file(CHMOD "${root}/${toolkit}/bin/nvcc" PERMISSIONS OWNER_READ OWNER_EXECUTE)
endforeach()
set(variables)
check("${root}/usr/local/cuda")
check("${root}/usr/local/cuda" CUDA_HOME=/without/nvcc PATH=/without/nvcc/bin)
list(PREPEND variables "PATH=/without/nvcc/bin:/toolkits/search/bin")
check("${root}/toolkits/search" ${variables})
list(PREPEND variables "CUDA_PATH=/toolkits/path")
check("${root}/toolkits/path" ${variables})
list(PREPEND variables "CUDA_HOME=/toolkits/home")
check("${root}/toolkits/home" ${variables})
list(PREPEND variables "CUDACXX=${root}/toolkits/cxx/bin/nvcc -ccbin g++")
check("${root}/toolkits/cxx" ${variables})
set(compiler "${root}/toolkits/compiler/bin/nvcc")
check("${root}/toolkits/compiler" ${variables})
set(LINKBOY_CUDA_TOOLKIT OFF)
check("" ${variables})
file(REMOVE_RECURSE "${WORK}")
