# Finds LibTorch. The first of these decides: Torch_DIR or CMAKE_PREFIX_PATH (in CMake or the environment);
# LINKBOY_USE_PYTHON_TORCH=1 in the environment, which selects the torch that python3 imports; the LibTorch that
# scripts/setup has installed. In the last two cases, sets LINKBOY_PYTHON to a Python that imports the same torch.

set(LINKBOY_TORCH_VERSION 2.11)  # the oldest supported version
set(cache_home "$ENV{XDG_CACHE_HOME}")
if(NOT cache_home)
  set(cache_home "$ENV{HOME}/.cache")
endif()
set(linkboy_wheel "$ENV{LINKBOY_TORCH_VERSION}")
if(NOT linkboy_wheel)
  set(linkboy_wheel 2.11.0)
endif()
set(linkboy_venv "${cache_home}/linkboy/torch-${linkboy_wheel}")

# A build folder keeps its LibTorch, because many of the paths that CMake has found depend on it. It is an error if the
# environment later requests another LibTorch.
set(choice)  # the setting that selects the LibTorch
set(asked)   # the setting in the environment
if(NOT "$ENV{Torch_DIR}" STREQUAL "")
  set(asked "Torch_DIR=$ENV{Torch_DIR}")
elseif("$ENV{LINKBOY_USE_PYTHON_TORCH}" STREQUAL "1")
  set(asked "LINKBOY_USE_PYTHON_TORCH=1")
elseif(NOT "$ENV{LINKBOY_TORCH_VERSION}" STREQUAL "")
  set(asked "LINKBOY_TORCH_VERSION=${linkboy_wheel}")
endif()
if(asked AND Torch_DIR AND LINKBOY_TORCH_CHOICE AND NOT asked STREQUAL LINKBOY_TORCH_CHOICE
    AND NOT asked STREQUAL "Torch_DIR=${Torch_DIR}")
  message(FATAL_ERROR "This build folder was configured with the LibTorch in ${Torch_DIR} "
    "(${LINKBOY_TORCH_CHOICE}), but the environment has ${asked}. Use another build folder, delete this one "
    "(${CMAKE_BINARY_DIR}), or unset the variable.")
endif()

if(Torch_DIR AND LINKBOY_TORCH_CHOICE AND NOT EXISTS "${Torch_DIR}/TorchConfig.cmake")
  message(FATAL_ERROR "The LibTorch that this build folder was configured with is no longer in ${Torch_DIR}. "
    "Install it again, or delete the build folder (${CMAKE_BINARY_DIR}).")
endif()
# FORCE is needed because a rejected LibTorch leaves Torch_DIR-NOTFOUND in the cache.
if(NOT "$ENV{Torch_DIR}" STREQUAL "" AND NOT Torch_DIR)
  if(NOT EXISTS "$ENV{Torch_DIR}/TorchConfig.cmake" AND NOT EXISTS "$ENV{Torch_DIR}/share/cmake/Torch")
    message(FATAL_ERROR "Torch_DIR is $ENV{Torch_DIR}, which does not contain TorchConfig.cmake. Set it to the folder "
      "of that file, share/cmake/Torch in a LibTorch, or unset it.")
  endif()
  set(Torch_DIR "$ENV{Torch_DIR}" CACHE PATH "Folder of TorchConfig.cmake" FORCE)
  set(choice "${asked}")
endif()
if(NOT TARGET torch AND NOT Torch_DIR)
  # The search skips the system's folders, because Debian's LibTorch is older.
  find_path(linkboy_torch_dir TorchConfig.cmake PATH_SUFFIXES Torch share/cmake/Torch
    NO_SYSTEM_ENVIRONMENT_PATH NO_CMAKE_SYSTEM_PATH NO_CACHE)
  if(linkboy_torch_dir)
    set(Torch_DIR "${linkboy_torch_dir}" CACHE PATH "Folder of TorchConfig.cmake" FORCE)
  else()
    if("$ENV{LINKBOY_USE_PYTHON_TORCH}" STREQUAL "1")
      find_program(python NAMES python3 REQUIRED NO_CACHE)
      set(choice "LINKBOY_USE_PYTHON_TORCH=1")
      set(advice "Install torch there, or unset LINKBOY_USE_PYTHON_TORCH and run scripts/setup.")
    elseif(EXISTS "${linkboy_venv}/.complete")
      set(python "${linkboy_venv}/bin/python" -I)  # -I: ignores PYTHONPATH
      set(choice "LINKBOY_TORCH_VERSION=${linkboy_wheel}")
      set(advice "Delete ${linkboy_venv}, and run scripts/setup.")
    else()
      message(FATAL_ERROR "LibTorch was not found: ${linkboy_venv} does not contain a complete one. Run scripts/setup, "
        "or set Torch_DIR, CMAKE_PREFIX_PATH or LINKBOY_USE_PYTHON_TORCH=1.")
    endif()
    execute_process(
      COMMAND ${python} -W ignore -c "import torch; print(torch.utils.cmake_prefix_path)"
      OUTPUT_VARIABLE torch_prefix ERROR_VARIABLE torch_error RESULT_VARIABLE torch_status
      OUTPUT_STRIP_TRAILING_WHITESPACE)
    list(GET python 0 python)
    if(NOT torch_status EQUAL 0)
      message(FATAL_ERROR "${python} cannot import torch (${torch_status}). ${advice}\n${torch_error}")
    endif()
    set(Torch_DIR "${torch_prefix}/Torch" CACHE PATH "Folder of TorchConfig.cmake" FORCE)
    set(LINKBOY_PYTHON "${python}" CACHE FILEPATH
      "A Python that imports the same torch; tests against Python need it")
  endif()
endif()

if(NOT TARGET torch)
  include("${CMAKE_CURRENT_LIST_DIR}/linkboyNvcc.cmake")
  if(choice)
    set(LINKBOY_TORCH_CHOICE "${choice}" CACHE INTERNAL "")
  endif()
  find_package(Torch ${LINKBOY_TORCH_VERSION} REQUIRED)
endif()
include("${CMAKE_CURRENT_LIST_DIR}/linkboyTorchLibraries.cmake")

# Unlike programs that use linkboy, linkboy's sources include CUDA's headers. The wheels that torch depends on do not
# contain the last two of these headers.
if(TARGET torch_cuda AND DEFINED linkboy_nvcc AND NOT linkboy_nvcc)
  foreach(header IN ITEMS cuda_runtime_api.h crt/host_defines.h nv/target)
    find_path(linkboy_header_folder ${header} PATHS ${linkboy_cuda_headers} NO_DEFAULT_PATH NO_CACHE)
    if(NOT linkboy_header_folder)
      message(FATAL_ERROR "The LibTorch in ${TORCH_INSTALL_PREFIX} has CUDA, but CUDA's header ${header} is not "
        "in ${linkboy_site_packages}/nvidia, and there is no CUDA toolkit: no nvcc in CUDA_HOME, CUDA_PATH, "
        "PATH and /usr/local/cuda. Run `python3 -m pip install 'cuda-toolkit[crt,cccl]'` with the Python "
        "that has this LibTorch, install the CUDA toolkit, or use a LibTorch for the CPU.")
    endif()
    unset(linkboy_header_folder)
  endforeach()
endif()
