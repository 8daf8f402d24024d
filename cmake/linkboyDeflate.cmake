# Finds libdeflate and defines the target linkboy::deflate for it. linkboy's CMake package refers only to this target,
# because the path of the library can be different where the package is used.
find_library(LINKBOY_DEFLATE deflate)
if(LINKBOY_DEFLATE AND NOT TARGET linkboy::deflate)
  add_library(linkboy::deflate UNKNOWN IMPORTED GLOBAL)
  set_target_properties(linkboy::deflate PROPERTIES IMPORTED_LOCATION "${LINKBOY_DEFLATE}")
endif()
