# Tests which versions of LibTorch find_package(linkboy) accepts and refuses, and its messages. Most of them are stubs,
# with which configuring takes a second.
file(REMOVE_RECURSE "${WORK}")

include("${CMAKE_CURRENT_LIST_DIR}/run.cmake")

install_linkboy("${WORK}/prefix")
string(REGEX MATCH "^([0-9.]+) for (.*)$" unused "${TORCH_BUILD}")
set(version "${CMAKE_MATCH_1}")
set(device "${CMAKE_MATCH_2}")

# Makes a LibTorch in WORK/torch with this version and device, "the CPU" or "CUDA 13".
function(make_torch version device)
  set(folder "${WORK}/torch/share/cmake/Torch")
  file(REMOVE_RECURSE "${WORK}/torch")
  file(COPY "${CMAKE_CURRENT_LIST_DIR}/stub_torch/TorchConfig.cmake" DESTINATION "${folder}")
  configure_file("${CMAKE_CURRENT_LIST_DIR}/stub_torch/TorchConfigVersion.cmake.in"
    "${folder}/TorchConfigVersion.cmake" @ONLY)
  if(device MATCHES "CUDA ([0-9]+)")
    file(WRITE "${WORK}/torch/lib/libc10_cuda.so" "libcudart.so.${CMAKE_MATCH_1}\n")
  endif()
endfunction()

# Configures find_linkboy with `request` and additional arguments for CMake.
function(find_linkboy expected request)
  file(REMOVE_RECURSE "${WORK}/build")
  run("${expected}" "${CMAKE_COMMAND}" -G Ninja
    -S "${CMAKE_CURRENT_LIST_DIR}/find_linkboy" -B "${WORK}/build"
    "-DREQUEST=${request}" "-DCMAKE_PREFIX_PATH=${WORK}/prefix" "-DCMAKE_CXX_COMPILER=${CXX}" ${ARGN})
  if(output MATCHES "LibTorch warns")
    message(FATAL_ERROR "find_package(linkboy) passes on a warning:\n${output}")
  endif()
  set(output "${output}" PARENT_SCOPE)
endfunction()

set(here "-DTorch_DIR=${WORK}/torch/share/cmake/Torch")
set(words "this linkboy was built with LibTorch ${TORCH_BUILD} and needs the same; found: ")
set(advice "Set Torch_DIR to the folder of TorchConfig.cmake of a LibTorch ${TORCH_BUILD}, or build linkboy")
foreach(name IN ITEMS Torch_DIR CMAKE_PREFIX_PATH TORCH_CUDA_ARCH_LIST)
  unset(ENV{${name}})
endforeach()

# A patch release of the same LibTorch is accepted. The architectures are those of the project.
function(check_architectures expected)
  find_linkboy(works "0.1 REQUIRED" "${here}" ${ARGN})
  if(NOT output MATCHES "/torch is for the architectures ${expected}\\.")
    message(FATAL_ERROR "the architectures are not ${expected}:\n${output}")
  endif()
endfunction()
make_torch("${version}.7" "${device}")
check_architectures("9\\.0")
set(ENV{TORCH_CUDA_ARCH_LIST} "8.0")
check_architectures("8\\.0")
check_architectures("7\\.5" "-DTORCH_CUDA_ARCH_LIST=7.5")

# Other versions and devices are refused.
foreach(other IN ITEMS "2.99 for ${device}"
    "${version} for the CPU" "${version} for CUDA 12" "${version} for CUDA 13")
  if(NOT other STREQUAL TORCH_BUILD)
    string(REGEX MATCH "^([0-9.]+) for (.*)$" unused "${other}")
    make_torch("${CMAKE_MATCH_1}.0" "${CMAKE_MATCH_2}")
    find_linkboy("${words}${other} in ${WORK_PATTERN}/torch\\. ${advice}" "0.1 REQUIRED" "${here}")
  endif()
endforeach()
find_linkboy("not found: ${words}" "0.1 QUIET" "${here}")  # optional: does not leave a target
make_torch("1.13.1" "${device}")
find_linkboy("${words}1\\.13\\.1\\. ${advice}" "0.1 REQUIRED" "${here}")
find_linkboy("${words}none\\. ${advice}" "0.1 REQUIRED" "-DTorch_DIR=${WORK}")

# The real LibTorch with another version.
file(REMOVE_RECURSE "${WORK}/torch")
file(REAL_PATH "${TORCH_DIR}/../../.." torch_prefix)
file(COPY "${torch_prefix}/share/cmake" DESTINATION "${WORK}/torch/share")
file(CREATE_LINK "${torch_prefix}/lib" "${WORK}/torch/lib" SYMBOLIC)
file(CREATE_LINK "${torch_prefix}/include" "${WORK}/torch/include" SYMBOLIC)
set(version_file "${WORK}/torch/share/cmake/Torch/TorchConfigVersion.cmake")
file(READ "${version_file}" text)
string(REGEX REPLACE "set\\(PACKAGE_VERSION [^)]*\\)" "set(PACKAGE_VERSION 2.99.0)" text "${text}")
file(WRITE "${version_file}" "${text}")
find_linkboy("${words}2.99 for ${device} in ${WORK_PATTERN}/torch\\. ${advice}" "0.1 REQUIRED" "${here}")

# Other versions and components of linkboy, and a missing libdeflate.
make_torch("${version}.0" "${device}")
find_linkboy("compatible with requested version \"0.2\".*linkboyConfig.cmake, version: 0.1.0"
  "0.2 REQUIRED" "${here}")
find_linkboy("linkboy has no component 'python'; its components are core, metrics, tracking, compile, cli and vision"
  "0.1 REQUIRED COMPONENTS core python" "${here}")
find_linkboy("not found: linkboy's component cli needs Boost.Program_options: install libboost-program"
  "0.1 QUIET COMPONENTS core cli" "${here}" -DCMAKE_DISABLE_FIND_PACKAGE_Boost=ON)
foreach(package IN ITEMS JPEG PNG)
  find_linkboy("not found: linkboy's component vision needs libjpeg-turbo and libpng: install libjpeg62-turbo-dev"
    "0.1 QUIET COMPONENTS vision" "${here}" -DCMAKE_DISABLE_FIND_PACKAGE_${package}=ON)
endforeach()
find_linkboy(works "0.1 REQUIRED" "${here}" -DCMAKE_DISABLE_FIND_PACKAGE_JPEG=ON)
file(GLOB static_library "${WORK}/prefix/lib*/liblinkboy.a" "${WORK}/prefix/lib/*/liblinkboy.a")
if(static_library)
  find_linkboy("linkboy needs libdeflate, which was not found: install libdeflate-dev, or set LINKBOY_DEFLATE"
    "0.1 REQUIRED" "${here}" -DHIDE_LIBRARIES=ON)
endif()
file(REMOVE_RECURSE "${WORK}")
