# Finds libdeflate and makes it the target linkboy::deflate, of which linkboy's package knows the name alone:
# the library may be elsewhere where the package is used.
find_library(LINKBOY_DEFLATE deflate)
if(LINKBOY_DEFLATE AND NOT TARGET linkboy::deflate)
  add_library(linkboy::deflate UNKNOWN IMPORTED GLOBAL)
  set_target_properties(linkboy::deflate PROPERTIES IMPORTED_LOCATION "${LINKBOY_DEFLATE}")
endif()
