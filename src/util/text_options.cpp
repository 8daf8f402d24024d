// Converts numbers and durations to and from text, and reports wrong keys and values.

#include "linkboy/util/text_options.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <iterator>

#include "util/parse_number.hpp"

namespace linkboy {

std::vector<std::string> split_at(char separator, const std::string& text) {
  const bool has_pairs =
      std::count(text.begin(), text.end(), '(') == std::count(text.begin(), text.end(), ')');
  std::vector<std::string> items(1);
  int depth = 0;
  for (const char c : text) {
    if (has_pairs) depth += (c == '(' ? 1 : 0) - (c == ')' ? 1 : 0);
    if (c == separator && depth <= 0) {
      items.emplace_back();
    } else {
      items.back() += c;
    }
  }
  return items;
}

template <class Number>
Number number_from_text(const std::string& text) {
  const auto number = parse_number<Number>(text);
  LINKBOY_CHECK_OPTION(number, "it must be ",
                       std::is_floating_point_v<Number> ? "a number"
                       : std::is_signed_v<Number>       ? "an integer (of at most 64 bits)"
                                                  : "a non-negative integer (of at most 64 bits)");
  return *number;
}

template int64_t number_from_text(const std::string& text);
template uint64_t number_from_text(const std::string& text);
template double number_from_text(const std::string& text);

std::string number_to_text(double number) { return fmt::format("{}", number); }

namespace {

struct Unit {
  const char* name;
  int64_t nanoseconds;
};
/// Ordered from the largest to the smallest.
constexpr Unit kUnits[] = {{"h", 3'600'000'000'000}, {"min", 60'000'000'000}, {"s", 1'000'000'000},
                           {"ms", 1'000'000},        {"us", 1'000},           {"ns", 1}};

}  // namespace

std::chrono::nanoseconds duration_from_text(const std::string& text) {
  constexpr const char* kAllowed = "it must be a number with its unit: 30s, 100ms, 5min, 2h";
  const std::size_t end = text.find_first_not_of("+-.0123456789");
  LINKBOY_CHECK_OPTION(end != std::string::npos, kAllowed);
  const std::size_t begin_of_unit = text.find_first_not_of(' ', end);
  const auto unit = std::find_if(std::begin(kUnits), std::end(kUnits), [&](const Unit& known) {
    return begin_of_unit != std::string::npos && text.substr(begin_of_unit) == known.name;
  });
  const auto number = parse_number<double>(text.substr(0, end));
  LINKBOY_CHECK_OPTION(unit != std::end(kUnits) && number, kAllowed);
  const double nanoseconds = *number * static_cast<double>(unit->nanoseconds);
  constexpr double kMost = 9.2e18;
  LINKBOY_CHECK_OPTION(std::abs(nanoseconds) < kMost, "it must be less than 292 years");
  return std::chrono::nanoseconds(std::llround(nanoseconds));
}

std::string duration_to_text(std::chrono::nanoseconds duration) {
  const int64_t count = duration.count();
  if (count == 0) return "0s";
  const auto unit = std::find_if(std::begin(kUnits), std::end(kUnits),
                                 [&](const Unit& known) { return count % known.nanoseconds == 0; });
  return std::to_string(count / unit->nanoseconds) + unit->name;
}

void check_keys(const std::string& owner, const TextSettings& fields,
                const TextSettings& settings) {
  for (auto setting = settings.begin(); setting != settings.end(); ++setting) {
    const std::string& key = setting->first;
    const auto has_key = [&key](const auto& other) { return other.first == key; };
    if (std::none_of(fields.begin(), fields.end(), has_key)) {
      std::string keys;
      for (const auto& field : fields) keys += (keys.empty() ? "it has " : ", ") + field.first;
      throw OptionError(c10::str("the ", owner, " has no option \"", key, "\"; ",
                                 keys.empty() ? "it does not have any" : keys, "."));
    }
    LINKBOY_CHECK_OPTION(std::none_of(settings.begin(), setting, has_key), "the ", owner, "'s ",
                         key, " is set twice; set each option only once.");
  }
}

std::string wrong_value(const std::string& name, const std::string& text, const Error& error) {
  const std::string reason = error.what();
  return c10::str(name, " is '", text, "'; ", reason, reason.ends_with('.') ? "" : ".");
}

}  // namespace linkboy
