# What every target of this project has in common.

if(NOT CMAKE_CXX_COMPILER_LAUNCHER)
  find_program(LINKBOY_CCACHE ccache)
  if(LINKBOY_CCACHE)
    # With a precompiled header ccache must be told that its macros and dates do not matter.
    set(CMAKE_CXX_COMPILER_LAUNCHER ${CMAKE_COMMAND} -E env
      CCACHE_SLOPPINESS=pch_defines,time_macros,include_file_mtime,include_file_ctime
      "${LINKBOY_CCACHE}")
    add_compile_options($<$<CXX_COMPILER_ID:GNU>:-fpch-preprocess>)
  endif()
endif()

# Sets language, visibility, warnings and sanitizers. Only what has LINKBOY_API is visible outside a
# library; programs are compiled likewise, since they share precompiled headers with it.
function(linkboy_configure_target target)
  target_compile_features(${target} PUBLIC cxx_std_20)
  # {fmt} is the one that LibTorch ships: its headers come first on the path, without a library.
  target_compile_definitions(${target} PRIVATE FMT_HEADER_ONLY)
  set_target_properties(${target} PROPERTIES CXX_EXTENSIONS OFF POSITION_INDEPENDENT_CODE ON
    CXX_VISIBILITY_PRESET hidden VISIBILITY_INLINES_HIDDEN ON)
  target_compile_options(${target} PRIVATE -Wall -Wextra $<$<BOOL:${LINKBOY_WERROR}>:-Werror>)
  if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU" AND CMAKE_CXX_COMPILER_VERSION VERSION_LESS 13)
    # GCC 12 sees overflows in std::string's operator+ that are not there (its bug 105329).
    target_compile_options(${target} PRIVATE -Wno-restrict -Wno-stringop-overflow)
  endif()
  if(LINKBOY_SANITIZE)
    # LibTorch is built without RTTI for some of the types that vptr looks at.
    target_compile_options(${target} PRIVATE
      -fsanitize=${LINKBOY_SANITIZE} -fno-sanitize=vptr -fno-omit-frame-pointer)
    target_link_options(${target} PUBLIC -fsanitize=${LINKBOY_SANITIZE})
  endif()
endfunction()

# What an installed library needs besides: a shared one has its version in its name, and finds LibTorch
# where it was built with it and linkboy beside itself.
function(linkboy_configure_library target)
  set_target_properties(${target} PROPERTIES
    VERSION ${PROJECT_VERSION} SOVERSION ${PROJECT_VERSION_MAJOR}.${PROJECT_VERSION_MINOR}
    INSTALL_RPATH "$ORIGIN" INSTALL_RPATH_USE_LINK_PATH ON
    DEFINE_SYMBOL "")  # it would make precompiled headers of the library unfit for others
  linkboy_unite_folders(${target})
endfunction()

# In a unity build the sources of one folder are one translation unit, and those of all folders with fewer
# than six sources another one: two thirds of the time that one of them takes are LibTorch's templates. (Names
# in their anonymous namespaces must differ.)
function(linkboy_unite_folders target)
  set_target_properties(${target} PROPERTIES UNITY_BUILD_MODE GROUP)
  get_target_property(sources ${target} SOURCES)
  foreach(source IN LISTS sources)
    cmake_path(GET source PARENT_PATH folder)
    cmake_path(GET folder FILENAME group)
    set(neighbours ${sources})
    list(FILTER neighbours INCLUDE REGEX "/${group}/[^/]*$")
    list(LENGTH neighbours num_neighbours)
    if(num_neighbours LESS 6)
      set(group small_folders)
    endif()
    set_source_files_properties("${source}" TARGET_DIRECTORY ${target} PROPERTIES UNITY_GROUP "${group}")
  endforeach()
  if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU" AND CMAKE_UNITY_BUILD)
    # An anonymous namespace in an included source is no header's.
    target_compile_options(${target} PRIVATE -Wno-subobject-linkage)
  endif()
endfunction()

# Adds the sources of a top-level folder and makes `folder/name.hpp` <linkboy/folder/name.hpp>, in
# the tree (by a link in the build folder) as after install.
function(linkboy_add_public_folder target folder)
  file(MAKE_DIRECTORY "${PROJECT_BINARY_DIR}/include/linkboy")
  file(CREATE_LINK "${PROJECT_SOURCE_DIR}/${folder}"
    "${PROJECT_BINARY_DIR}/include/linkboy/${folder}" SYMBOLIC)
  file(GLOB sources CONFIGURE_DEPENDS "${PROJECT_SOURCE_DIR}/${folder}/*.cpp")
  file(GLOB headers CONFIGURE_DEPENDS RELATIVE "${PROJECT_SOURCE_DIR}"
    "${PROJECT_SOURCE_DIR}/${folder}/*.hpp")
  list(TRANSFORM headers PREPEND "${PROJECT_BINARY_DIR}/include/linkboy/")
  target_sources(${target} PRIVATE ${sources} PUBLIC FILE_SET HEADERS
    BASE_DIRS "${PROJECT_BINARY_DIR}/include" FILES ${headers})
endfunction()
