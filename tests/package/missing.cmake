# Configures without the packages that only tests, benchmarks or linkboy::vision need. Tests the messages
# and the default build type.
file(REMOVE_RECURSE "${WORK}")

include("${CMAKE_CURRENT_LIST_DIR}/run.cmake")

function(configure expected)
  run("${expected}" "${CMAKE_COMMAND}" -G Ninja -S "${SOURCE}" -B "${WORK}" "-DTorch_DIR=${TORCH_DIR}"
    "-DCMAKE_CXX_COMPILER=${CXX}" "-DLINKBOY_DEFLATE=${DEFLATE}" "-DLINKBOY_DEFLATE_INCLUDE=${DEFLATE_INCLUDE}"
    -DLINKBOY_BUILD_EXAMPLES=OFF ${ARGN})
endfunction()

configure("tests need GoogleTest, which was not found. Run `scripts/setup --dev`, or build without tests"
  -DLINKBOY_BUILD_BENCHMARKS=OFF -DCMAKE_DISABLE_FIND_PACKAGE_GTest=ON)
file(STRINGS "${WORK}/CMakeCache.txt" build_type REGEX "^CMAKE_BUILD_TYPE:")
if(NOT build_type STREQUAL "CMAKE_BUILD_TYPE:STRING=Release")
  message(FATAL_ERROR "without a build type the cache has ${build_type}")
endif()
configure("benchmarks need Google Benchmark, which was not found. Run `scripts/setup --dev`, or build without them"
  -DLINKBOY_BUILD_BENCHMARKS=ON -DLINKBOY_BUILD_TESTS=OFF -DCMAKE_DISABLE_FIND_PACKAGE_benchmark=ON)
foreach(package IN ITEMS JPEG PNG)
  configure("linkboy::vision needs libjpeg-turbo and libpng, which were not found. Install libjpeg62-turbo-dev and libpng"
    -DLINKBOY_BUILD_BENCHMARKS=OFF -DLINKBOY_BUILD_TESTS=OFF
    -DCMAKE_DISABLE_FIND_PACKAGE_${package}=ON)
endforeach()
configure(works -DLINKBOY_BUILD_BENCHMARKS=ON -DLINKBOY_BUILD_TESTS=ON -DLINKBOY_BUILD_VISION=OFF
  -DCMAKE_DISABLE_FIND_PACKAGE_GTest=OFF -DCMAKE_DISABLE_FIND_PACKAGE_benchmark=OFF)
run(works "${CMAKE_COMMAND}" --build "${WORK}" -- -t targets all)
if(output MATCHES "linkboy_vision")
  message(FATAL_ERROR "targets of linkboy::vision exist although it is not built:\n${output}")
endif()
file(REMOVE_RECURSE "${WORK}")
