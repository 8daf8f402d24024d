# `cpack -G DEB` in the build folder: liblinkboy-dev, and with BUILD_SHARED_LIBS liblinkboy0.1 beside it.
# Debian has no LibTorch of the version that linkboy needs, so the packages do not depend on one. The shared
# library's packages are those of the Debian release that builds it: dpkg-shlibdeps finds them.

set(CPACK_GENERATOR DEB)
set(CPACK_PACKAGE_NAME linkboy)
set(CPACK_PACKAGE_VENDOR linkboy)
set(CPACK_PACKAGE_CONTACT "The linkboy authors <linkboy@localhost>")
set(CPACK_PACKAGE_DESCRIPTION_SUMMARY "${PROJECT_DESCRIPTION}")
set(CPACK_PACKAGING_INSTALL_PREFIX /usr)
set(CPACK_VERBATIM_VARIABLES ON)
set(CPACK_DEB_COMPONENT_INSTALL ON)
set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)

set(runtime_package "liblinkboy${PROJECT_VERSION_MAJOR}.${PROJECT_VERSION_MINOR}")
set(CPACK_DEBIAN_DEVELOPMENT_PACKAGE_NAME liblinkboy-dev)
set(CPACK_DEBIAN_DEVELOPMENT_PACKAGE_SECTION libdevel)
set(CPACK_COMPONENT_DEVELOPMENT_DESCRIPTION
  "Headers, CMake and pkg-config files. LibTorch ${linkboy_torch_build} must be installed separately: \
give its folder by Torch_DIR.")
set(development_needs)
if(LINKBOY_BUILD_CLI)
  list(APPEND development_needs "libboost-program-options-dev (>= 1.74)")
endif()
set(CPACK_COMPONENTS_ALL Development)
if(BUILD_SHARED_LIBS)
  list(APPEND CPACK_COMPONENTS_ALL Runtime)
  list(APPEND development_needs "${runtime_package} (= ${PROJECT_VERSION})")
  set(CPACK_DEBIAN_RUNTIME_PACKAGE_NAME ${runtime_package})
  set(CPACK_DEBIAN_RUNTIME_PACKAGE_SECTION libs)
  set(CPACK_DEBIAN_RUNTIME_PACKAGE_SHLIBDEPS ON)
  set(CPACK_COMPONENT_RUNTIME_DESCRIPTION "The shared library. LibTorch must be installed separately.")
else()
  list(APPEND development_needs libdeflate-dev)
endif()
list(JOIN development_needs ", " CPACK_DEBIAN_DEVELOPMENT_PACKAGE_DEPENDS)
include(CPack)
