# Finds libdeflate and makes it the target linkboy::deflate. linkboy's package knows that name only, because the
# library may be in another place where the package is used.
find_library(LINKBOY_DEFLATE deflate)
if(LINKBOY_DEFLATE AND NOT TARGET linkboy::deflate)
  add_library(linkboy::deflate UNKNOWN IMPORTED GLOBAL)
  set_target_properties(linkboy::deflate PROPERTIES IMPORTED_LOCATION "${LINKBOY_DEFLATE}")
endif()
