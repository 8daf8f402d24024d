# The packages of a shared library must depend on the Debian packages of the libraries that it links, under the
# names that this release uses, and on nothing else.
file(REMOVE_RECURSE "${WORK}")

include("${CMAKE_CURRENT_LIST_DIR}/run.cmake")

foreach(tool IN ITEMS dpkg-shlibdeps file)
  find_program(path_of_${tool} ${tool})
  if(NOT path_of_${tool} AND "$ENV{LINKBOY_NO_SKIPS}" STREQUAL "1")
    message(FATAL_ERROR "${tool} was not found, and LINKBOY_NO_SKIPS=1 is set")
  elseif(NOT path_of_${tool})
    message("skipped: ${tool} was not found (Debian's packages dpkg-dev and file)")
    return()
  endif()
endforeach()
run(works "${CMAKE_COMMAND}" -G Ninja -S "${CMAKE_CURRENT_LIST_DIR}/debian" -B "${WORK}"
  -DLINKBOY_BUILD_CLI=OFF "-DCMAKE_CXX_COMPILER=${CXX}")
run(works "${CMAKE_COMMAND}" --build "${WORK}")
run(works "${CMAKE_COMMAND}" -E chdir "${WORK}" "${CMAKE_CPACK_COMMAND}")

function(check_dependencies package name)
  file(GLOB file "${WORK}/${package}_0.1.0_*.deb")
  run(works dpkg-deb --field "${file}" Depends)
  set(one "(${name}|libc6|libgcc-s1|libstdc\\+\\+6) \\([^)]*\\)")
  if(NOT output MATCHES "^${one}(, ${one})*\n$" OR NOT output MATCHES "${name} ")
    message(FATAL_ERROR "${package} depends on: ${output}")
  endif()
endfunction()
run(works dpkg -S "*/libdeflate.so.*")
string(REGEX MATCH "^[^:]+" deflate_package "${output}")
check_dependencies(liblinkboy0.1 "${deflate_package}")
check_dependencies(liblinkboy-dev "liblinkboy0\\.1")
file(REMOVE_RECURSE "${WORK}")
