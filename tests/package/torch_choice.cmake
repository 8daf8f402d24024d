# Tests which LibTorch linkboy's own build uses, and its messages if there is none. All of them are stubs.
file(REMOVE_RECURSE "${WORK}")

include("${CMAKE_CURRENT_LIST_DIR}/run.cmake")

# Makes a LibTorch of this version in WORK/name.
function(make_torch name version)
  file(COPY "${CMAKE_CURRENT_LIST_DIR}/stub_torch/TorchConfig.cmake" DESTINATION "${WORK}/${name}/share/cmake/Torch")
  configure_file("${CMAKE_CURRENT_LIST_DIR}/stub_torch/TorchConfigVersion.cmake.in"
    "${WORK}/${name}/share/cmake/Torch/TorchConfigVersion.cmake" @ONLY)
endfunction()

# Makes a Python at `path` that imports the torch of `name`.
function(make_python path name)
  file(WRITE "${path}" "#!/bin/sh\necho '${WORK}/${name}/share/cmake'\n")
  file(CHMOD "${path}" PERMISSIONS OWNER_READ OWNER_WRITE OWNER_EXECUTE)
endfunction()

# Configures find_torch in WORK/build with environment variables NAME=VALUE and arguments -D... for CMake.
function(configure expected)
  set(arguments ${ARGN})
  set(variables ${ARGN})
  list(FILTER arguments INCLUDE REGEX "^-D")
  list(FILTER variables EXCLUDE REGEX "^-D")
  run("${expected}" "${CMAKE_COMMAND}" -E env --unset=Torch_DIR --unset=CMAKE_PREFIX_PATH
    --unset=LINKBOY_TORCH_VERSION --unset=LINKBOY_USE_PYTHON_TORCH "XDG_CACHE_HOME=${WORK}/the cache"
    "PATH=${WORK}/system/bin:$ENV{PATH}" ${variables}
    "${CMAKE_COMMAND}" -G Ninja -S "${CMAKE_CURRENT_LIST_DIR}/find_torch" -B "${WORK}/build"
    "-DSOURCE=${SOURCE}" "-DSYSTEM_PREFIX=${WORK}/system" ${arguments})
  set(output "${output}" PARENT_SCOPE)
endfunction()

function(takes name)
  configure(works ${ARGN})
  if(NOT output MATCHES "LibTorch is ${WORK_PATTERN}/${name}/share/cmake/Torch\\.")
    message(FATAL_ERROR "expected the LibTorch in ${WORK}/${name}:\n${output}")
  endif()
endfunction()

function(forget)
  file(REMOVE_RECURSE "${WORK}/build")
endfunction()

make_torch(system 1.13.1)  # like Debian's libtorch-dev
make_torch(wheel 2.11.0)
make_torch(newer 2.15.0)
make_torch(given 2.11.1)
set(here "${WORK}/given/share/cmake/Torch")
file(MAKE_DIRECTORY "${WORK}/system/bin")

# If there is none, the message names the folder that was searched. A wrong folder can be corrected in the same
# build folder.
set(cache "${WORK}/the cache/linkboy")
configure("LibTorch was not found: .*/the cache/linkboy/torch-2.11.0 does not contain a complete one. Run scripts/setup")
configure("Torch_DIR is /nowhere, which does not contain TorchConfig.cmake. Set it to the folder" "Torch_DIR=/nowhere")
configure("compatible with requested version \"2.11\"" "Torch_DIR=${WORK}/system/share/cmake/Torch")
make_python("${cache}/torch-2.11.0/bin/python" wheel)
make_python("${cache}/torch-2.15.0/bin/python" newer)
configure("LibTorch was not found")  # incomplete
file(TOUCH "${cache}/torch-2.11.0/.complete" "${cache}/torch-2.15.0/.complete")
takes(wheel)

# A build folder keeps its LibTorch.
takes(wheel "LINKBOY_TORCH_VERSION=2.11.0")
takes(wheel "Torch_DIR=${WORK}/wheel/share/cmake/Torch")
set(words "This build folder was configured with the LibTorch in ${WORK_PATTERN}/wheel/share/cmake/Torch "
  "\\(LINKBOY_TORCH_VERSION=2.11.0\\), but the environment has ")
list(JOIN words "" words)
configure("${words}LINKBOY_TORCH_VERSION=2.15.0. Use another build folder" "LINKBOY_TORCH_VERSION=2.15.0")
configure("${words}Torch_DIR=${WORK_PATTERN}/given/" "Torch_DIR=${here}")
configure("${words}LINKBOY_USE_PYTHON_TORCH=1" "LINKBOY_USE_PYTHON_TORCH=1")
takes(wheel)
file(RENAME "${WORK}/wheel" "${WORK}/gone")
configure("LibTorch that this build folder was configured with is no longer in .*/wheel/share/cmake/Torch")
file(RENAME "${WORK}/gone" "${WORK}/wheel")
takes(wheel)

forget()
takes(wheel "LINKBOY_TORCH_VERSION=" "Torch_DIR=")  # equivalent to unset
forget()
takes(newer "LINKBOY_TORCH_VERSION=2.15.0")
takes(newer)
forget()
takes(given "Torch_DIR=${here}" "LINKBOY_TORCH_VERSION=2.15.0")
takes(given "Torch_DIR=${here}")
forget()
takes(given "CMAKE_PREFIX_PATH=${WORK}/given" "LINKBOY_TORCH_VERSION=2.15.0")
takes(given "CMAKE_PREFIX_PATH=${WORK}/given" "LINKBOY_TORCH_VERSION=2.15.0")
forget()
takes(given "-DTorch_DIR=${here}" "Torch_DIR=/nowhere")
takes(given "Torch_DIR=/nowhere")
forget()
make_python("${WORK}/system/bin/python3" newer)
takes(newer "LINKBOY_USE_PYTHON_TORCH=1")

# A Python without torch.
forget()
file(WRITE "${WORK}/system/bin/python3" "#!/bin/sh\necho No module named torch >&2\nexit 1\n")
configure("/system/bin/python3 cannot import torch \\(1\\). Install torch there, or unset .* No module named torch"
  "LINKBOY_USE_PYTHON_TORCH=1")
file(REMOVE "${cache}/torch-2.11.0/bin/python")  # the link's target is missing
configure("torch-2.11.0/bin/python cannot import torch .*Delete .*/torch-2.11.0, and run scripts/setup")
file(REMOVE_RECURSE "${WORK}")
