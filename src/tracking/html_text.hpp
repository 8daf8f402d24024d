#pragma once

#include <string>
#include <string_view>

namespace linkboy {

/// Escapes text for HTML and XML, also within double quotes. Anything that XML does not allow
/// (control characters, bytes that are not UTF-8) becomes U+FFFD.
std::string html_text(std::string_view text);

/// Formats a number with six significant digits; or "NaN", "∞" or "−∞".
std::string html_number(double value);

/// Formats seconds since 1970 as "2026-03-01 12:30:00 UTC"; empty if the year is not 1970 to 9999.
std::string html_time(double seconds);

/// Formats a duration: "1 h 02 min", "3 min 20 s", "12.5 s".
std::string html_duration(double seconds);

}  // namespace linkboy
