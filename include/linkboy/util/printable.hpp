#pragma once

#include <cstddef>
#include <string>
#include <string_view>

#include "linkboy/export.hpp"

/// Text from files and other untrusted sources, made safe for a terminal and a log.
namespace linkboy {

/// Maximum number of bytes of a name from a file that an error message shows.
inline constexpr std::size_t kMaxShownName = 200;

/// Returns `text` with escape sequences (`\n`, `\x1b`, `\u202e`) in place of control characters,
/// characters that change the direction of text, backslashes and bytes that are not UTF-8, so that
/// a terminal does not interpret them.
///
/// @param max_size  Longer text is truncated to this number of bytes, followed by "...".
LINKBOY_API std::string printable(std::string_view text,
                                  std::size_t max_size = std::string_view::npos);

/// Returns `printable(text, max_size)` in quotation marks; quotation marks in the text are escaped
/// as well.
LINKBOY_API std::string quoted(std::string_view text,
                               std::size_t max_size = std::string_view::npos);

/// Returns a name from a file for an error message: quoted and truncated to kMaxShownName bytes.
inline std::string quote_name(std::string_view name) { return quoted(name, kMaxShownName); }

/// Returns a complete message with escapes as in `printable`, but leaves line breaks, tabs and
/// backslashes unchanged.
LINKBOY_API std::string printable_message(std::string_view text);

}  // namespace linkboy
