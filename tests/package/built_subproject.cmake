# Builds and runs the subproject.
set(BUILD ON)
include("${CMAKE_CURRENT_LIST_DIR}/subproject.cmake")
