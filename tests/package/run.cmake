# WORK as a regular expression.
string(REGEX REPLACE "([][+.*()^$?|\\])" "\\\\\\1" WORK_PATTERN "${WORK}")

# An option of CMake for the project of a user. Its programs then check the standard library before `main`.
set(check_standard_library "-DCMAKE_CXX_FLAGS=-include '${CMAKE_CURRENT_LIST_DIR}/standard_library.hpp'")

# run(EXPECTED COMMAND...): EXPECTED is `works`, or a regular expression that the output of the failing command must
# match, with white space reduced to single spaces. Sets `output` in the caller.
function(run expected)
  execute_process(COMMAND ${ARGN} RESULT_VARIABLE status OUTPUT_VARIABLE output ERROR_VARIABLE output)
  list(JOIN ARGN " " command)
  string(REGEX REPLACE "[ \n]+" " " line "${output}")
  if(expected STREQUAL "works" AND NOT status EQUAL 0)
    message(FATAL_ERROR "failed (${status}): ${command}\n${output}")
  elseif(NOT expected STREQUAL "works" AND (status EQUAL 0 OR NOT line MATCHES "${expected}"))
    message(FATAL_ERROR "should have failed with '${expected}': ${command}\n${output}")
  endif()
  set(output "${output}" PARENT_SCOPE)
endfunction()

# Installs linkboy from the build folder into PREFIX.
function(install_linkboy prefix)
  run(works "${CMAKE_COMMAND}" --install "${BINARY}" --config "${CONFIG}" --prefix "${prefix}")
endfunction()

# Builds and runs a program that includes `headers` with the pkg-config files in `folder` and additional compiler
# flags. Sets `compile_flags` in the caller.
function(run_with_pkg_config folder headers)
  find_program(pkg_config NAMES pkg-config pkgconf REQUIRED)
  list(TRANSFORM headers REPLACE "^.+$" "#include <\\0>\n")
  list(JOIN headers "" includes)
  file(WRITE "${WORK}/program.cpp" "${includes}#include \"${SOURCE}/tests/package/standard_library.hpp\"
int main(int argc, char** argv) {
  return linkboy::cli::run_main(argc, argv, [](const linkboy::cli::Arguments&) {
    linkboy::write_checkpoint(\"${WORK}/x.pt\", {{\"version\", LINKBOY_VERSION}});
    linkboy::vision::resnet18({.num_classes = 2});
    try {
      (void)linkboy::vision::decode_image(\"${WORK}/x.pt\");
      std::exit(3);
    } catch (const linkboy::CorruptFileError&) {
    }
  });
}\n")
  set(ENV{PKG_CONFIG_PATH} "${folder}")
  run(works "${pkg_config}" --cflags linkboy-cli linkboy-vision)
  separate_arguments(compile_flags UNIX_COMMAND "${output}")
  run(works "${pkg_config}" --libs linkboy-cli linkboy-vision)
  separate_arguments(link_flags UNIX_COMMAND "${output}")
  run(works "${CXX}" ${compile_flags} ${ARGN} -c "${WORK}/program.cpp" -o "${WORK}/program.o")
  run(works "${CXX}" "${WORK}/program.o" -o "${WORK}/program" ${link_flags})
  # LD_LIBRARY_PATH finds shared libraries.
  run(works "${CMAKE_COMMAND}" -E env "LD_LIBRARY_PATH=${folder}/.." "${WORK}/program")
  set(compile_flags "${compile_flags}" PARENT_SCOPE)
endfunction()
