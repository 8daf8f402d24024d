# Installs linkboy, moves the folder, and builds and runs a program with it by find_package and by
# pkg-config; asks for wrong versions and components; unpacks the Debian package and finds it there.
#   cmake -D BUILD=... -D SOURCE=... -D WORK=... -D TORCH_DIR=... -P check.cmake
file(REMOVE_RECURSE "${WORK}")

include("${CMAKE_CURRENT_LIST_DIR}/run.cmake")

set(consumer "${SOURCE}/examples/consumer_find_package")
run(works "${CMAKE_COMMAND}" --install "${BUILD}" --prefix "${WORK}/first")
file(RENAME "${WORK}/first" "${WORK}/moved")
run(works "${CMAKE_COMMAND}" -G Ninja -S "${consumer}" -B "${WORK}/build"
  "-DCMAKE_PREFIX_PATH=${WORK}/moved" "-DTorch_DIR=${TORCH_DIR}")
run(works "${CMAKE_COMMAND}" --build "${WORK}/build")
run(works "${WORK}/build/consumer")
if(NOT output MATCHES "linkboy 0\\.1\\.0: loss 0\\.[0-9]+\n$")
  message(FATAL_ERROR "the consumer printed: ${output}")
endif()

# What a project must not get.
foreach(request IN ITEMS "0.2 REQUIRED" "0.1 REQUIRED COMPONENTS python")
  file(WRITE "${WORK}/wrong/CMakeLists.txt" "cmake_minimum_required(VERSION 3.25)\n"
    "project(wrong LANGUAGES CXX)\nfind_package(linkboy ${request})\n")
  run("linkboy" "${CMAKE_COMMAND}" -G Ninja -S "${WORK}/wrong" -B "${WORK}/wrong/build"
    "-DCMAKE_PREFIX_PATH=${WORK}/moved" "-DTorch_DIR=${TORCH_DIR}")
endforeach()

# Without CMake.
find_program(pkg_config NAMES pkg-config pkgconf REQUIRED)
find_program(compiler NAMES c++ g++ REQUIRED)
file(GLOB_RECURSE pc_file "${WORK}/moved/*/linkboy.pc")
cmake_path(GET pc_file PARENT_PATH pc_folder)
run(works "${CMAKE_COMMAND}" -E env "PKG_CONFIG_PATH=${pc_folder}" "${pkg_config}" --cflags --libs linkboy)
separate_arguments(flags UNIX_COMMAND "${output}")
file(WRITE "${WORK}/version.cpp" "#include <linkboy/checkpoint.hpp>\n#include <linkboy/version.hpp>\n"
  "int main() { linkboy::write_checkpoint(\"${WORK}/x.pt\", {{\"version\", LINKBOY_VERSION}}); }\n")
run(works "${compiler}" "${WORK}/version.cpp" -o "${WORK}/version" ${flags})
run(works "${WORK}/version")

# The Debian package, unpacked as dpkg would.
run(works "${CMAKE_COMMAND}" -E chdir "${BUILD}" "${CMAKE_CPACK_COMMAND}" -G DEB -B "${WORK}/packages")
file(GLOB packages "${WORK}/packages/*.deb")
foreach(package IN LISTS packages)
  run(works dpkg-deb --extract "${package}" "${WORK}/debian")
endforeach()
run(works "${CMAKE_COMMAND}" -G Ninja -S "${consumer}" -B "${WORK}/debian_build"
  "-DCMAKE_PREFIX_PATH=${WORK}/debian/usr" "-DTorch_DIR=${TORCH_DIR}")
file(REMOVE_RECURSE "${WORK}")
