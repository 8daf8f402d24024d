#pragma once

#include <exception>
#include <string>
#include <string_view>

namespace linkboy {

/// Serialises an exception for other processes: its class among linkboy's errors, and its message.
/// The result is never empty.
std::string error_bytes(const std::exception_ptr& exception);

/// Throws the exception that `error_bytes` serialised, with `prefix` before its message.
[[noreturn]] void throw_error(std::string_view bytes, const std::string& prefix = "");

}  // namespace linkboy
