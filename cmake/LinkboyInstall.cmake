# Installs the library: CMake's package with the components `core` and `cli`, a pkg-config file, and
# by `cpack` Debian packages. Nothing of it names the folder it was installed into.

include(CMakePackageConfigHelpers)

set(package_folder "${CMAKE_INSTALL_LIBDIR}/cmake/linkboy")
install(TARGETS linkboy EXPORT linkboyCoreTargets
  RUNTIME COMPONENT Runtime
  LIBRARY COMPONENT Runtime NAMELINK_COMPONENT Development
  ARCHIVE COMPONENT Development
  FILE_SET HEADERS COMPONENT Development)
install(EXPORT linkboyCoreTargets NAMESPACE linkboy:: DESTINATION "${package_folder}"
  COMPONENT Development)
if(LINKBOY_BUILD_CLI)
  install(TARGETS linkboy_cli EXPORT linkboyCliTargets
    RUNTIME COMPONENT Runtime
    LIBRARY COMPONENT Runtime NAMELINK_COMPONENT Development
    ARCHIVE COMPONENT Development
    FILE_SET HEADERS COMPONENT Development)
  install(EXPORT linkboyCliTargets NAMESPACE linkboy:: DESTINATION "${package_folder}"
    COMPONENT Development)
endif()

configure_package_config_file(
  "${CMAKE_CURRENT_LIST_DIR}/linkboyConfig.cmake.in" "${PROJECT_BINARY_DIR}/linkboyConfig.cmake"
  INSTALL_DESTINATION "${package_folder}" NO_SET_AND_CHECK_MACRO)
write_basic_package_version_file("${PROJECT_BINARY_DIR}/linkboyConfigVersion.cmake"
  COMPATIBILITY SameMinorVersion)
install(FILES "${CMAKE_CURRENT_LIST_DIR}/linkboyNvcc.cmake"
  "${CMAKE_CURRENT_LIST_DIR}/linkboyTorchLibraries.cmake" "${PROJECT_BINARY_DIR}/linkboyConfig.cmake"
  "${PROJECT_BINARY_DIR}/linkboyConfigVersion.cmake"
  DESTINATION "${package_folder}" COMPONENT Development)

# pkg-config: LibTorch has no file of its own, so its folder is a variable that can be overridden.
set(torch_libraries "-ltorch -ltorch_cpu -lc10")
list(JOIN linkboy_torch_link_options " " linkboy_rpath_links)
if(TORCH_CUDA_LIBRARIES)
  string(APPEND torch_libraries " -ltorch_cuda -lc10_cuda")
endif()
set(linkboy_private_libraries)
if(NOT BUILD_SHARED_LIBS)
  set(linkboy_private_libraries "-ldeflate ")
endif()
if(LINKBOY_SANITIZE)
  string(APPEND linkboy_private_libraries "-fsanitize=${LINKBOY_SANITIZE} ")
endif()
file(RELATIVE_PATH prefix_of_pkgconfig
  "/prefix/${CMAKE_INSTALL_LIBDIR}/pkgconfig" "/prefix")
string(REGEX REPLACE "/$" "" prefix_of_pkgconfig "${prefix_of_pkgconfig}")
configure_file("${CMAKE_CURRENT_LIST_DIR}/linkboy.pc.in" "${PROJECT_BINARY_DIR}/linkboy.pc" @ONLY)
install(FILES "${PROJECT_BINARY_DIR}/linkboy.pc"
  DESTINATION "${CMAKE_INSTALL_LIBDIR}/pkgconfig" COMPONENT Development)

install(FILES "${PROJECT_SOURCE_DIR}/LICENSE" "${PROJECT_SOURCE_DIR}/README.md"
  "${PROJECT_SOURCE_DIR}/CHANGELOG.md"
  DESTINATION "${CMAKE_INSTALL_DOCDIR}" COMPONENT Development)

if(PROJECT_IS_TOP_LEVEL)
  include(LinkboyPackages)
endif()
