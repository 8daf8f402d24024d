# Configures examples/consumers/fetch_content with shared libraries and checks its targets. With BUILD=ON, also builds
# and runs it, without optimization, which would take most of the time.
#   cmake -D SOURCE=... -D WORK=... -D TORCH_DIR=... [-D BUILD=ON] -P subproject.cmake
file(REMOVE_RECURSE "${WORK}")

include("${CMAKE_CURRENT_LIST_DIR}/run.cmake")

set(ENV{TORCH_CUDA_ARCH_LIST} "8.0")
run(works "${CMAKE_COMMAND}" -G Ninja -S "${SOURCE}/examples/consumers/fetch_content" -B "${WORK}"
  -DCMAKE_BUILD_TYPE=Release -DCMAKE_CXX_FLAGS_RELEASE=-O0 -DCMAKE_UNITY_BUILD=ON -DBUILD_SHARED_LIBS=ON
  "-DTorch_DIR=${TORCH_DIR}"
  "-DCMAKE_PROJECT_linkboy_fetch_consumer_INCLUDE=${CMAKE_CURRENT_LIST_DIR}/check_standard_library.cmake")
file(STRINGS "${WORK}/CMakeCache.txt" architectures REGEX "^TORCH_CUDA_ARCH_LIST:")
if(NOT architectures STREQUAL "TORCH_CUDA_ARCH_LIST:STRING=8.0")
  message(FATAL_ERROR "TORCH_CUDA_ARCH_LIST of the environment is 8.0; the cache has ${architectures}")
endif()
run(works "${CMAKE_COMMAND}" --build "${WORK}" -- -t targets all)
foreach(wanted IN ITEMS "consumer:" "vision_consumer:" "liblinkboy\\.so" "liblinkboy_metrics\\.so"
    "liblinkboy_tracking\\.so" "liblinkboy_compile\\.so" "liblinkboy_cli\\.so" "liblinkboy_vision\\.so")
  if(NOT output MATCHES "${wanted}")
    message(FATAL_ERROR "there is no target ${wanted}:\n${output}")
  endif()
endforeach()
foreach(unwanted IN ITEMS "linkboy_tests" "fashion_mnist:" "linkboy_overhead:")
  if(output MATCHES "${unwanted}")
    message(FATAL_ERROR "a subproject must not have the target ${unwanted}")
  endif()
endforeach()

if(BUILD)
  foreach(program IN ITEMS consumer vision_consumer)
    run(works "${CMAKE_COMMAND}" --build "${WORK}" --target ${program})
    run(works "${WORK}/${program}")
    message(STATUS "${output}")
  endforeach()
endif()
