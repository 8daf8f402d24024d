#pragma once

#include <cstddef>
#include <string>
#include <string_view>

#include "linkboy/export.hpp"

/// Text from files and other strangers, made fit for a terminal and a log.
namespace linkboy {

/// As many bytes of a name from a file as an error message shows.
inline constexpr std::size_t kMaxShownName = 200;

/// Returns `text` with escapes in place of what a terminal would obey: control characters, those
/// that turn the direction of the text, backslashes and bytes that are not UTF-8 become `\n`,
/// `\x1b`, `\u202e`.
///
/// @param max_size  Text of more bytes is cut there and ends with "...".
LINKBOY_API std::string printable(std::string_view text,
                                  std::size_t max_size = std::string_view::npos);

/// Returns `printable(text, max_size)` in quotation marks, with those in it escaped as well.
LINKBOY_API std::string quoted(std::string_view text,
                               std::size_t max_size = std::string_view::npos);

/// Returns a name from a file as an error message shows it: quoted and cut at kMaxShownName bytes.
inline std::string quote_name(std::string_view name) { return quoted(name, kMaxShownName); }

/// Returns a whole message with escapes as in `printable`, but with its line ends, tabs and
/// backslashes as they are.
LINKBOY_API std::string printable_message(std::string_view text);

}  // namespace linkboy
