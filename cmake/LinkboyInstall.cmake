# Installs the library: a CMake package with the component `core` and those of linkboy_add_component, and pkg-config
# files. `cpack` makes Debian packages. The installed folder can be moved, because its files do not contain its path, unless
# CMAKE_INSTALL_LIBDIR or CMAKE_INSTALL_INCLUDEDIR is absolute.

include(CMakePackageConfigHelpers)

set(package_folder "${CMAKE_INSTALL_LIBDIR}/cmake/linkboy")
foreach(component IN ITEMS core ${linkboy_components})
  set(target linkboy_${component})
  if(component STREQUAL core)
    set(target linkboy)
  endif()
  install(TARGETS ${target} EXPORT linkboy_${component}_targets
    RUNTIME COMPONENT Runtime
    LIBRARY COMPONENT Runtime NAMELINK_COMPONENT Development
    ARCHIVE COMPONENT Development
    FILE_SET HEADERS COMPONENT Development)
  install(EXPORT linkboy_${component}_targets NAMESPACE linkboy:: DESTINATION "${package_folder}"
    COMPONENT Development)
endforeach()

configure_package_config_file(
  "${CMAKE_CURRENT_LIST_DIR}/linkboyConfig.cmake.in" "${PROJECT_BINARY_DIR}/linkboyConfig.cmake"
  INSTALL_DESTINATION "${package_folder}" NO_SET_AND_CHECK_MACRO NO_CHECK_REQUIRED_COMPONENTS_MACRO)
write_basic_package_version_file("${PROJECT_BINARY_DIR}/linkboyConfigVersion.cmake"
  COMPATIBILITY SameMinorVersion)
set(package_modules linkboyDeflate linkboyNvcc linkboyTorchBuild linkboyTorchLibraries)
list(TRANSFORM package_modules APPEND ".cmake")
list(TRANSFORM package_modules PREPEND "${CMAKE_CURRENT_LIST_DIR}/")
install(FILES ${package_modules}
  "${PROJECT_BINARY_DIR}/linkboyConfig.cmake" "${PROJECT_BINARY_DIR}/linkboyConfigVersion.cmake"
  DESTINATION "${package_folder}" COMPONENT Development)

# The pkg-config files. LibTorch has no such file, so its folder is a variable that can be overridden. Spaces are
# escaped and not quoted, because pkgconf itself escapes those in pcfiledir.
set(pc_prefix "${CMAKE_INSTALL_PREFIX}")
if(NOT IS_ABSOLUTE "${CMAKE_INSTALL_LIBDIR}")
  file(RELATIVE_PATH pc_prefix "/prefix/${CMAKE_INSTALL_LIBDIR}/pkgconfig" "/prefix")
  string(REGEX REPLACE "/$" "" pc_prefix "\${pcfiledir}/${pc_prefix}")
endif()
cmake_path(APPEND pc_libdir "\${prefix}" "${CMAKE_INSTALL_LIBDIR}")
cmake_path(APPEND pc_includedir "\${prefix}" "${CMAKE_INSTALL_INCLUDEDIR}")
foreach(folder IN ITEMS pc_prefix pc_libdir pc_includedir)
  string(REPLACE " " "\\ " ${folder} "${${folder}}")
endforeach()

# Sets `result` to the flags that link the library `target`, including its folder if the linker does not search it.
function(linkboy_pkg_config_flags result target)
  get_target_property(library ${target} LOCATION)
  cmake_path(GET library PARENT_PATH folder)
  cmake_path(GET library STEM name)
  string(REGEX REPLACE "^lib" "-l" flags "${name}")
  if(NOT folder IN_LIST CMAKE_CXX_IMPLICIT_LINK_DIRECTORIES)
    string(PREPEND flags "-L\"${folder}\" -Wl,-rpath,\"${folder}\" ")
  endif()
  set(${result} "${flags}" PARENT_SCOPE)
endfunction()

set(pc_torch_libraries "-ltorch -ltorch_cpu -lc10")
if(TARGET torch_cuda)
  string(APPEND pc_torch_libraries " -ltorch_cuda -lc10_cuda")
endif()
list(TRANSFORM linkboy_torch_link_options REPLACE "^.+$" "\"\\0\"" OUTPUT_VARIABLE pc_torch_link_options)
list(JOIN pc_torch_link_options " " pc_torch_link_options)
if(NOT BUILD_SHARED_LIBS)
  linkboy_pkg_config_flags(pc_deflate linkboy::deflate)
endif()
if(LINKBOY_SANITIZE)
  set(pc_sanitize "-fsanitize=${LINKBOY_SANITIZE}")
endif()
# Installs the file of one library, whose further flags and required files are in the variables pc_libs and pc_requires.
function(linkboy_install_pkg_config name template)
  configure_file("${CMAKE_CURRENT_LIST_DIR}/${template}.pc.in" "${PROJECT_BINARY_DIR}/${name}.pc" @ONLY)
  install(FILES "${PROJECT_BINARY_DIR}/${name}.pc"
    DESTINATION "${CMAKE_INSTALL_LIBDIR}/pkgconfig" COMPONENT Development)
endfunction()

linkboy_install_pkg_config(linkboy linkboy)
set(pc_packages_of_cli Boost::program_options)
set(pc_packages_of_vision JPEG::JPEG PNG::PNG)
foreach(component IN LISTS linkboy_components)
  set(pc_libs)
  if(NOT BUILD_SHARED_LIBS)
    foreach(package IN LISTS pc_packages_of_${component})
      linkboy_pkg_config_flags(flags ${package})
      string(APPEND pc_libs " ${flags}")
    endforeach()
  endif()
  set(pc_requires "linkboy = ${PROJECT_VERSION}")
  if(component STREQUAL cli)
    string(APPEND pc_requires ", linkboy-metrics, linkboy-tracking, linkboy-compile")
  endif()
  linkboy_install_pkg_config(linkboy-${component} linkboy-component)
endforeach()

install(FILES "${PROJECT_SOURCE_DIR}/LICENSE" "${PROJECT_SOURCE_DIR}/README.md"
  "${PROJECT_SOURCE_DIR}/CHANGELOG.md" "${PROJECT_SOURCE_DIR}/docs/options.md"
  DESTINATION "${CMAKE_INSTALL_DOCDIR}" COMPONENT Development)

if(PROJECT_IS_TOP_LEVEL)
  include(LinkboyPackages)
endif()
