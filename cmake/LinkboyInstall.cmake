# Installs the library so that find_package(linkboy) gives linkboy::linkboy and linkboy::cli.

include(CMakePackageConfigHelpers)

set(linkboy_targets linkboy)
if(LINKBOY_BUILD_CLI)
  list(APPEND linkboy_targets linkboy_cli)
endif()
install(TARGETS ${linkboy_targets} EXPORT linkboyTargets FILE_SET HEADERS)
install(EXPORT linkboyTargets NAMESPACE linkboy:: DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/linkboy)
configure_package_config_file(
  "${CMAKE_CURRENT_LIST_DIR}/linkboyConfig.cmake.in" "${PROJECT_BINARY_DIR}/linkboyConfig.cmake"
  INSTALL_DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/linkboy)
write_basic_package_version_file("${PROJECT_BINARY_DIR}/linkboyConfigVersion.cmake"
  COMPATIBILITY SameMinorVersion)
install(FILES "${PROJECT_BINARY_DIR}/linkboyConfig.cmake"
  "${PROJECT_BINARY_DIR}/linkboyConfigVersion.cmake"
  DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/linkboy)
