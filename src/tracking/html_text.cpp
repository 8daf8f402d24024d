#include "html_text.hpp"

#include <fmt/chrono.h>
#include <fmt/format.h>

#include <cmath>
#include <cstdint>
#include <ctime>

#include "json_lines_value.hpp"

namespace linkboy {
namespace {

constexpr std::string_view kReplacement = "\xEF\xBF\xBD";  // U+FFFD

std::string valid_utf8(std::string_view text) {
  return Json::parse(json_line(Json(text))).get<std::string>();
}

/// Replaces U+FFFE and U+FFFF, the two characters that are valid UTF-8 but not allowed in XML.
std::string without_noncharacters(std::string text) {
  for (const std::string_view bytes : {"\xEF\xBF\xBE", "\xEF\xBF\xBF"}) {
    for (std::size_t at = 0; (at = text.find(bytes, at)) != text.npos; at += bytes.size()) {
      text.replace(at, bytes.size(), kReplacement);
    }
  }
  return text;
}

}  // namespace

std::string html_text(std::string_view text) {
  std::string escaped;
  for (const char letter : without_noncharacters(valid_utf8(text))) {
    const auto code = static_cast<unsigned char>(letter);
    if (letter == '&') {
      escaped += "&amp;";
    } else if (letter == '<') {
      escaped += "&lt;";
    } else if (letter == '>') {
      escaped += "&gt;";
    } else if (letter == '"') {
      escaped += "&quot;";
    } else if (letter == '\'') {
      escaped += "&#39;";
    } else if ((code < 0x20 && letter != '\t' && letter != '\n' && letter != '\r') ||
               code == 0x7F) {
      escaped += kReplacement;
    } else {
      escaped += letter;
    }
  }
  return escaped;
}

std::string html_number(double value) {
  if (std::isnan(value)) return "NaN";
  if (std::isinf(value)) return value > 0 ? "∞" : "−∞";
  return fmt::format("{:.6g}", value);
}

std::string html_time(double seconds) {
  constexpr double kYear9999 = 253402300799.0;
  if (!(seconds >= 0.0 && seconds <= kYear9999)) return "";
  const auto time = static_cast<std::time_t>(seconds);
  return fmt::format("{:%Y-%m-%d %H:%M:%S} UTC", fmt::gmtime(time));
}

std::string html_duration(double seconds) {
  if (!(seconds < 1e9)) return "";
  if (seconds < 60) return fmt::format("{:.1f} s", seconds);
  const auto whole = static_cast<int64_t>(seconds);
  if (whole < 3600) return fmt::format("{} min {:02} s", whole / 60, whole % 60);
  return fmt::format("{} h {:02} min", whole / 3600, whole / 60 % 60);
}

}  // namespace linkboy
