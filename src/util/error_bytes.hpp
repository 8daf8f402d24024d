#pragma once

#include <exception>
#include <string>
#include <string_view>

namespace linkboy {

/// Returns an exception as bytes for other processes: its class and its message. Never empty.
std::string error_bytes(const std::exception_ptr& exception);

/// Throws an exception of the same class, with `prefix` before the message.
[[noreturn]] void throw_error(std::string_view bytes, const std::string& prefix = "");

}  // namespace linkboy
