#pragma once

#include <string>
#include <string_view>

namespace linkboy {

/// Text for HTML and XML, also within double quotes. What XML cannot hold (control characters,
/// bytes that are not UTF-8) becomes U+FFFD.
std::string html_text(std::string_view text);

/// With six significant digits; "NaN", "∞" or "−∞".
std::string html_number(double value);

/// "2026-03-01 12:30:00 UTC". Seconds since 1970; empty if they name no such time.
std::string html_time(double seconds);

/// "1 h 02 min", "3 min 20 s", "12.5 s".
std::string html_duration(double seconds);

}  // namespace linkboy
