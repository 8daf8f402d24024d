# Installs linkboy, moves the folder, runs the tools there, and builds and runs a program with find_package.
# Unpacks the Debian package and finds linkboy there.
file(REMOVE_RECURSE "${WORK}")

include("${CMAKE_CURRENT_LIST_DIR}/run.cmake")

set(consumer "${SOURCE}/examples/consumers/find_package")
install_linkboy("${WORK}/first")
file(RENAME "${WORK}/first" "${WORK}/moved here")
if(TOOLS)
  foreach(tool IN ITEMS linkboy-checkpoint linkboy-compile lr_curve)
    run(works "${WORK}/moved here/bin/${tool}" --help)
  endforeach()
endif()

# The LibTorch that linkboy was built with is found automatically; libdeflate can be anywhere.
cmake_path(GET DEFLATE FILENAME deflate_name)
file(MAKE_DIRECTORY "${WORK}/elsewhere")
file(CREATE_LINK "${DEFLATE}" "${WORK}/elsewhere/${deflate_name}" SYMBOLIC)
run(works "${CMAKE_COMMAND}" -G Ninja -S "${consumer}" -B "${WORK}/build"
  "-DCMAKE_PREFIX_PATH=${WORK}/moved here" "${check_standard_library}"
  "-DLINKBOY_DEFLATE=${WORK}/elsewhere/${deflate_name}" --no-warn-unused-cli)
if(output MATCHES "CMake Warning")
  message(FATAL_ERROR "find_package(linkboy) passes on a warning:\n${output}")
endif()
run(works "${CMAKE_COMMAND}" --build "${WORK}/build" --verbose)
file(GLOB_RECURSE static_library "${WORK}/moved here/*/liblinkboy.a")
if(static_library AND NOT output MATCHES "elsewhere/${deflate_name}")
  message(FATAL_ERROR "the consumer was not linked with ${WORK}/elsewhere/${deflate_name}:\n${output}")
endif()
run(works "${WORK}/build/consumer")
if(NOT output MATCHES "linkboy 0\\.1\\.0: loss 0\\.[0-9]+\n$")
  message(FATAL_ERROR "the consumer printed: ${output}")
endif()
run(works "${WORK}/build/vision_consumer")
if(NOT output STREQUAL "scores: [1, 3]\n")
  message(FATAL_ERROR "the consumer of linkboy::vision printed: ${output}")
endif()

# Unpacks the Debian package like dpkg.
run(works "${CMAKE_COMMAND}" -E chdir "${BINARY}" "${CMAKE_CPACK_COMMAND}" -G DEB -B "${WORK}/packages"
  -C "${CONFIG}")
file(GLOB packages "${WORK}/packages/*.deb")
foreach(package IN LISTS packages)
  run(works dpkg-deb --extract "${package}" "${WORK}/debian")
endforeach()
run(works "${CMAKE_COMMAND}" -G Ninja -S "${consumer}" -B "${WORK}/debian_build"
  "-DCMAKE_PREFIX_PATH=${WORK}/debian/usr" "-DTorch_DIR=${TORCH_DIR}")
file(REMOVE_RECURSE "${WORK}")
