# Configuring in the source folder must fail before linkboy writes any file there.
file(REMOVE_RECURSE "${WORK}")

include("${CMAKE_CURRENT_LIST_DIR}/run.cmake")

file(COPY "${SOURCE}/CMakeLists.txt" DESTINATION "${WORK}")
set(words "The build folder is the source folder, ${WORK_PATTERN}\\. Delete the files that CMake has just written there "
  "\\(CMakeCache.txt and CMakeFiles\\), and name another folder: cmake -S \\. -B build")
list(JOIN words "" words)
run("${words}" "${CMAKE_COMMAND}" -S "${WORK}" -B "${WORK}")
file(GLOB left RELATIVE "${WORK}" "${WORK}/*")
if(NOT left STREQUAL "CMakeCache.txt;CMakeFiles;CMakeLists.txt")
  message(FATAL_ERROR "the source folder contains ${left}")
endif()
