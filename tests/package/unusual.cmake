# Installs with a multi-configuration generator, absolute install folders, and libdeflate outside of the default
# paths. Existing libraries replace those that the generator would build.
file(REMOVE_RECURSE "${WORK}")

include("${CMAKE_CURRENT_LIST_DIR}/run.cmake")

cmake_path(GET DEFLATE FILENAME deflate_name)
file(MAKE_DIRECTORY "${WORK}/deflate/lib" "${WORK}/deflate/include")
file(CREATE_LINK "${DEFLATE}" "${WORK}/deflate/lib/${deflate_name}" SYMBOLIC)
file(CREATE_LINK "${DEFLATE_INCLUDE}/libdeflate.h" "${WORK}/deflate/include/libdeflate.h" SYMBOLIC)
run(works "${CMAKE_COMMAND}" -G "Ninja Multi-Config" -S "${SOURCE}" -B "${WORK}/build"
  "-DTorch_DIR=${TORCH_DIR}" "-DCMAKE_CXX_COMPILER=${CXX}" "-DLINKBOY_SANITIZE=${SANITIZE}"
  "-DLINKBOY_DEFLATE=${WORK}/deflate/lib/${deflate_name}"
  -DLINKBOY_BUILD_EXAMPLES=OFF -DLINKBOY_BUILD_BENCHMARKS=OFF -DCMAKE_EXPORT_COMPILE_COMMANDS=ON
  "-DCMAKE_INSTALL_PREFIX=${WORK}/pre fix" "-DCMAKE_INSTALL_LIBDIR=${WORK}/lib folder/lib64"
  "-DCMAKE_INSTALL_INCLUDEDIR=${WORK}/include folder")
file(READ "${WORK}/build/compile_commands.json" commands)
if(NOT commands MATCHES "${WORK_PATTERN}/deflate/include")
  message(FATAL_ERROR "linkboy is compiled without ${WORK}/deflate/include")
endif()

string(REPLACE "," ";" libraries "${LIBRARIES}")
file(COPY ${libraries} DESTINATION "${WORK}/build/Release")
run(works "${CMAKE_COMMAND}" --install "${WORK}/build" --config Release)
run_with_pkg_config("${WORK}/lib folder/lib64/pkgconfig"
  "linkboy/checkpoint.hpp;linkboy/cli.hpp;linkboy/version.hpp;linkboy/vision.hpp")
file(READ_ELF "${WORK}/program" RUNPATH runpath RPATH rpath)
if(NOT "${runpath}${rpath}" MATCHES "${WORK_PATTERN}/deflate/lib")
  message(FATAL_ERROR "the program looks for libdeflate in '${runpath}${rpath}'")
endif()

file(GLOB_RECURSE object "${BINARY}/examples/*/quickstart.cpp.o")
file(COPY "${object}" DESTINATION "${WORK}/build/examples")
run(works "${CMAKE_CTEST_COMMAND}" --test-dir "${WORK}/build" -C Release -R structure.public_symbols_are_visible
  --no-tests=error --output-on-failure)
file(REMOVE_RECURSE "${WORK}")
