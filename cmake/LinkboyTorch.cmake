# Finds LibTorch: the one of Torch_DIR or CMAKE_PREFIX_PATH (CMake's or the environment's), else with
# LINKBOY_USE_PYTHON_TORCH=1 in the environment the one that python3 imports, else the one that
# scripts/setup has installed. Sets LINKBOY_PYTHON to a Python that imports the same torch, if any.

set(LINKBOY_TORCH_VERSION 2.11)  # the oldest that does
set(cache_home "$ENV{XDG_CACHE_HOME}")
if(NOT cache_home)
  set(cache_home "$ENV{HOME}/.cache")
endif()
set(linkboy_wheel 2.11.0)
if(DEFINED ENV{LINKBOY_TORCH_VERSION})
  set(linkboy_wheel "$ENV{LINKBOY_TORCH_VERSION}")
endif()
set(linkboy_venv "${cache_home}/linkboy/torch-${linkboy_wheel}")

if(DEFINED ENV{Torch_DIR} AND NOT Torch_DIR)
  set(Torch_DIR "$ENV{Torch_DIR}" CACHE PATH "Folder of TorchConfig.cmake")
endif()
if(NOT TARGET torch AND NOT Torch_DIR)
  find_path(linkboy_torch_dir TorchConfig.cmake PATH_SUFFIXES Torch share/cmake/Torch NO_CACHE)
  if(linkboy_torch_dir)
    set(Torch_DIR "${linkboy_torch_dir}" CACHE PATH "Folder of TorchConfig.cmake")
  else()
    if("$ENV{LINKBOY_USE_PYTHON_TORCH}" STREQUAL "1")
      find_program(python NAMES python3 REQUIRED NO_CACHE)
    elseif(EXISTS "${linkboy_venv}/.complete")
      set(python "${linkboy_venv}/bin/python")
    else()
      message(FATAL_ERROR "LibTorch was not found. Run scripts/setup, or set Torch_DIR, "
        "CMAKE_PREFIX_PATH or LINKBOY_USE_PYTHON_TORCH=1.")
    endif()
    execute_process(
      COMMAND "${python}" -W ignore -c "import torch; print(torch.utils.cmake_prefix_path)"
      OUTPUT_VARIABLE torch_prefix OUTPUT_STRIP_TRAILING_WHITESPACE COMMAND_ERROR_IS_FATAL ANY)
    set(Torch_DIR "${torch_prefix}/Torch" CACHE PATH "Folder of TorchConfig.cmake")
    set(LINKBOY_PYTHON "${python}" CACHE FILEPATH
      "A Python that imports the same torch; tests against Python need it")
  endif()
endif()

if(NOT TARGET torch)
  include("${CMAKE_CURRENT_LIST_DIR}/linkboyNvcc.cmake")
  find_package(Torch ${LINKBOY_TORCH_VERSION} REQUIRED)
endif()
include("${CMAKE_CURRENT_LIST_DIR}/linkboyTorchLibraries.cmake")

# linkboy's sources include CUDA's headers, which programs that use linkboy do not. The last of them are not
# in the wheels that torch depends on.
if(TARGET torch_cuda AND DEFINED linkboy_nvcc AND NOT linkboy_nvcc)
  foreach(header IN ITEMS cuda_runtime_api.h crt/host_defines.h nv/target)
    find_path(linkboy_header_folder ${header} PATHS ${linkboy_cuda_headers} NO_DEFAULT_PATH NO_CACHE)
    if(NOT linkboy_header_folder)
      message(FATAL_ERROR "The LibTorch in ${TORCH_INSTALL_PREFIX} has CUDA, but CUDA's header ${header} is not "
        "in ${linkboy_site_packages}/nvidia, and there is no CUDA toolkit: no nvcc in CUDA_HOME, CUDA_PATH, "
        "PATH and /usr/local/cuda. Run `python3 -m pip install 'cuda-toolkit[crt,cccl]'` with the Python "
        "that has this LibTorch, install the CUDA toolkit, or take a LibTorch for the CPU.")
    endif()
    unset(linkboy_header_folder)
  endforeach()
endif()
