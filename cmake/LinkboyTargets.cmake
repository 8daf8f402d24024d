# Settings of all targets in this project.

if(NOT CMAKE_CXX_COMPILER_LAUNCHER)
  find_program(LINKBOY_CCACHE ccache)
  if(LINKBOY_CCACHE)
    # With precompiled headers, ccache must ignore macros and file times.
    set(CMAKE_CXX_COMPILER_LAUNCHER ${CMAKE_COMMAND} -E env
      CCACHE_SLOPPINESS=pch_defines,time_macros,include_file_mtime,include_file_ctime
      "${LINKBOY_CCACHE}")
    add_compile_options($<$<CXX_COMPILER_ID:GNU>:-fpch-preprocess>)
  endif()
endif()

if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
  # LibTorch's headers fill GCC's heap. By default, GCC collects garbage as often as in a small program, which takes up
  # to a quarter of the compile time and finds little.
  add_compile_options("SHELL:--param ggc-min-heapsize=4194304")  # in KiB
endif()

# Sets language, visibility, warnings and sanitizers. Only symbols with LINKBOY_API are visible outside a library.
# Programs are compiled in the same way, because they share precompiled headers with it.
function(linkboy_configure_target target)
  target_compile_features(${target} PUBLIC cxx_std_20)
  # LibTorch ships the headers of {fmt} but not its library, and its headers come first in the include path.
  target_compile_definitions(${target} PRIVATE FMT_HEADER_ONLY)
  set_target_properties(${target} PROPERTIES CXX_EXTENSIONS OFF POSITION_INDEPENDENT_CODE ON
    CXX_VISIBILITY_PRESET hidden VISIBILITY_INLINES_HIDDEN ON)
  target_compile_options(${target} PRIVATE -Wall -Wextra $<$<BOOL:${LINKBOY_WERROR}>:-Werror>)
  # Since version 18, clang's names of constrained function templates differ from those that GCC has given them in
  # LibTorch, for example at::TensorBase::const_data_ptr<float>.
  target_compile_options(${target} PUBLIC
    "$<$<AND:$<CXX_COMPILER_ID:Clang>,$<VERSION_GREATER_EQUAL:$<CXX_COMPILER_VERSION>,18>>:-fclang-abi-compat=17>")
  if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU" AND CMAKE_CXX_COMPILER_VERSION VERSION_LESS 13)
    # GCC 12 reports overflows in std::string's operator+ that do not exist (GCC bug 105329).
    target_compile_options(${target} PRIVATE -Wno-restrict -Wno-stringop-overflow)
  endif()
  if(LINKBOY_SANITIZE)
    # LibTorch is built without RTTI for some of the types that the vptr check inspects.
    target_compile_options(${target} PRIVATE
      -fsanitize=${LINKBOY_SANITIZE} -fno-sanitize=vptr -fno-omit-frame-pointer)
    target_link_options(${target} PUBLIC -fsanitize=${LINKBOY_SANITIZE})
  endif()
endfunction()

# Sets the properties of an installed library. The name of a shared library contains its version. It finds LibTorch at
# the path with which it was built, and the other linkboy libraries in its own folder.
function(linkboy_configure_library target)
  set_target_properties(${target} PROPERTIES
    VERSION ${PROJECT_VERSION} SOVERSION ${PROJECT_VERSION_MAJOR}.${PROJECT_VERSION_MINOR}
    INSTALL_RPATH "$ORIGIN" INSTALL_RPATH_USE_LINK_PATH ON
    DEFINE_SYMBOL "")  # with this macro, other targets could not use the library's precompiled header
  linkboy_unite_folders(${target})
endfunction()

# Makes the text of a source file available to a target: `#include "NAME_text.hpp"` declares it as a constant.
function(linkboy_embed_text target file constant)
  cmake_path(GET file STEM name)
  file(READ "${CMAKE_CURRENT_SOURCE_DIR}/${file}" text)
  file(CONFIGURE OUTPUT "${CMAKE_CURRENT_BINARY_DIR}/embedded/${name}_text.hpp" @ONLY NEWLINE_STYLE UNIX CONTENT
    "#pragma once\n\ninline constexpr const char* ${constant} = R\"text(@text@)text\";\n")
  set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS "${file}")
  target_include_directories(${target} PRIVATE "${CMAKE_CURRENT_BINARY_DIR}/embedded")
endfunction()

# In a unity build, the sources of a folder are one translation unit, and the sources of all folders with fewer than six
# sources are another one. LibTorch's templates take two thirds of the time for a translation unit, so few large ones
# compile faster. Names in anonymous namespaces must be unique within a unit.
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
    # GCC mistakes an anonymous namespace in an included source for one in a header.
    target_compile_options(${target} PRIVATE -Wno-subobject-linkage)
  endif()
endfunction()

# Adds the sources of a top-level folder, and makes `folder/name.hpp` available as <linkboy/folder/name.hpp>: in the
# build tree by a link in the build folder, and after installation.
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
