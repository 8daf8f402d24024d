# A subproject must have NCCL if LibTorch was built with CUDA, wherever in the project LibTorch was found, unless
# LINKBOY_NCCL is OFF. A missing header must be an error.
file(REMOVE_RECURSE "${WORK}")

include("${CMAKE_CURRENT_LIST_DIR}/run.cmake")

function(configure expected torch_dir)
  run("${expected}" "${CMAKE_COMMAND}" -G Ninja
    -S "${CMAKE_CURRENT_LIST_DIR}/torch_elsewhere" -B "${WORK}/build"
    -DTORCH_CUDA_ARCH_LIST=9.0 "-DTorch_DIR=${torch_dir}" ${ARGN})
  set(output "${output}" PARENT_SCOPE)
endfunction()

function(check said source)
  file(READ "${WORK}/build/compile_commands.json" commands)
  if(NOT output MATCHES "-- linkboy: ${said}" OR NOT commands MATCHES "distributed/${source}\"")
    message(FATAL_ERROR "expected '${said}' and ${source}:\n${output}")
  endif()
endfunction()

configure(works "${TORCH_DIR}")
if(TORCH_BUILD MATCHES "the CPU")
  check("without NCCL, because LibTorch is built for the CPU" no_nccl.cpp)
else()
  check("with NCCL, whose header is in " nccl.cpp)
  configure(works "${TORCH_DIR}" -DLINKBOY_NCCL=OFF)
  check("without NCCL, because LINKBOY_NCCL is OFF" no_nccl.cpp)

  # A LibTorch that was moved away from the wheel's other libraries.
  file(REAL_PATH "${TORCH_DIR}/../../.." torch_prefix)
  file(COPY "${torch_prefix}/share/cmake" DESTINATION "${WORK}/torch/share")
  file(CREATE_LINK "${torch_prefix}/lib" "${WORK}/torch/lib" SYMBOLIC)
  file(CREATE_LINK "${torch_prefix}/include" "${WORK}/torch/include" SYMBOLIC)
  set(folders "${WORK_PATTERN}/torch/\\.\\./nvidia/nccl/include and ${WORK_PATTERN}/torch/include")
  configure("nccl.h was not found in ${folders}\\. Set LINKBOY_NCCL_INCLUDE to the folder"
    "${WORK}/torch/share/cmake/Torch" -DLINKBOY_NCCL=ON -ULINKBOY_NCCL_INCLUDE)
endif()
file(REMOVE_RECURSE "${WORK}")
