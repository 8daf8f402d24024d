// The version of these headers, according to semantic versioning: before 1.0, a new minor version
// may change the API, and a new patch version does not. CMake reads the version from this file.

#pragma once

/// The parts of the version.
/// @{
#define LINKBOY_VERSION_MAJOR 0
#define LINKBOY_VERSION_MINOR 1
#define LINKBOY_VERSION_PATCH 0
/// @}
/// The version as text.
#define LINKBOY_VERSION "0.1.0"
