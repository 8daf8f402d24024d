#pragma once

#include <string>
#include <string_view>

#include "linkboy/export.hpp"

namespace linkboy {

/// Returns `name` if it is a plain name: not empty, not "." or "..", and without "/" and null
/// bytes. A name from a training state must pass this check before it becomes part of a path,
/// because the state can come from an untrusted source.
///
/// @param what  Description of the name in the error, such as "SaveBestModel's checkpoint".
/// @throws Error if it is not a plain name.
LINKBOY_API const std::string& require_plain_name(const std::string& name, std::string_view what);

}  // namespace linkboy
