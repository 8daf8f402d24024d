# Makes a project with scripts/new_project, builds it with an installed linkboy and runs it. Configures it with
# linkboy's sources. Calls the script with arguments that it must refuse.
file(REMOVE_RECURSE "${WORK}")

include("${CMAKE_CURRENT_LIST_DIR}/run.cmake")

set(script "${SOURCE}/scripts/new_project")
set(project "${WORK}/two spirals")
run(works "${script}" spirals "${project}")
if(NOT output MATCHES "cmake --build ")
  message(FATAL_ERROR "new_project does not print the next steps:\n${output}")
endif()
install_linkboy("${WORK}/installed")
run(works "${CMAKE_COMMAND}" -G Ninja -S "${project}" -B "${project}/build"
  "-DCMAKE_PREFIX_PATH=${WORK}/installed" "${check_standard_library}")
run(works "${CMAKE_COMMAND}" --build "${project}/build")
run(works "${CMAKE_COMMAND}" -E env OMP_NUM_THREADS=1 "${project}/build/spirals")
if(NOT output MATCHES "accuracy: (1\\.000|0\\.9[0-9]+)\n$")
  message(FATAL_ERROR "the project printed: ${output}")
endif()

run(works "${CMAKE_COMMAND}" -G Ninja -S "${project}" -B "${WORK}/with sources"
  "-DTorch_DIR=${TORCH_DIR}" -DCMAKE_DISABLE_FIND_PACKAGE_linkboy=ON)
run(works "${CMAKE_COMMAND}" --build "${WORK}/with sources" --target help)
if(NOT output MATCHES "linkboy")
  message(FATAL_ERROR "linkboy is not built along with the project:\n${output}")
endif()

run("is not an empty folder" "${script}" spirals "${project}")
run("must begin with a letter" "${script}" "2 spirals" "${WORK}/other")
run("choose another" "${script}" test "${WORK}/other")
run("there must be two" "${script}" spirals)
if(EXISTS "${WORK}/other")
  message(FATAL_ERROR "a refused project has files in ${WORK}/other")
endif()
file(REMOVE_RECURSE "${WORK}")
