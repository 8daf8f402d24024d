# Builds and runs a program with pkg-config, from a folder whose name contains a space. The compiler then treats
# linkboy's headers like the user's headers, so they must not cause any warning that a user can enable.
file(REMOVE_RECURSE "${WORK}")

include("${CMAKE_CURRENT_LIST_DIR}/run.cmake")

install_linkboy("${WORK}/first")
file(RENAME "${WORK}/first" "${WORK}/moved here")
file(GLOB_RECURSE pc_file "${WORK}/moved here/*/linkboy.pc")
cmake_path(GET pc_file PARENT_PATH pc_folder)
file(GLOB_RECURSE headers RELATIVE "${WORK}/moved here/include" "${WORK}/moved here/include/*.hpp")
set(warnings -Werror -Wall -Wextra -Wpedantic -Wconversion -Wsign-conversion -Wshadow -Wold-style-cast)
run_with_pkg_config("${pc_folder}" "${headers}" ${warnings})

if(CLANG)
  run(works "${CLANG}" ${compile_flags} ${warnings} -Wdocumentation -fsyntax-only "${WORK}/program.cpp")
else()
  message(STATUS "not checked with clang++, which was not found")
endif()

# pkgconf 1.8 does not escape the spaces of some flags.
run(works "${pkg_config}" --version)
if(output VERSION_LESS 1.9)
  message(STATUS "not checked with a space in LibTorch's folder: pkg-config is ${output}")
else()
  file(REAL_PATH "${TORCH_DIR}/../../.." torch_prefix)
  file(CREATE_LINK "${torch_prefix}" "${WORK}/torch folder" SYMBOLIC)
  file(WRITE "${WORK}/torch.cpp" "#include <c10/macros/Macros.h>\nint main() {}\n")
  run(works "${pkg_config}" "--define-variable=torch_prefix=${WORK}/torch folder" --cflags --libs linkboy)
  separate_arguments(flags UNIX_COMMAND "${output}")
  run(works "${CXX}" "${WORK}/torch.cpp" -o "${WORK}/torch" ${flags})
endif()
file(REMOVE_RECURSE "${WORK}")
