// The version of these headers, as semantic versioning has it: before 1.0 a new minor version may
// change the API, a new patch does not. CMake reads it from here.

#pragma once

/// One of the three numbers of the version.
/// @{
#define LINKBOY_VERSION_MAJOR 0
#define LINKBOY_VERSION_MINOR 1
#define LINKBOY_VERSION_PATCH 0
/// @}
/// All of it, as text.
#define LINKBOY_VERSION "0.1.0"
