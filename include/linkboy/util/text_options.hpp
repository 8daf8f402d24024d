// Options as text, on a command line or in a config file: the fields of an options struct, and the
// conversion of their values to and from text.

#pragma once

#include <algorithm>
#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "linkboy/error.hpp"
#include "linkboy/export.hpp"

/// Lists the members of an options struct that can be set from text; the name of a member is its
/// key. If a member itself has fields, they are added to those of the struct, unless it has a text
/// of its own (a static `parse`).
///
///     struct StepSchedulerOptions {
///       RunExpression step_size = placeholders::num_updates;
///       double gamma = 0.1;
///       LINKBOY_FIELDS(step_size, gamma);
///     };
#define LINKBOY_FIELDS(...)                                   \
  template <class Visit>                                      \
  void visit_fields(const Visit& visit) {                     \
    ::linkboy::visit_named(visit, #__VA_ARGS__, __VA_ARGS__); \
  }                                                           \
  static_assert(true) /* a semicolon follows */

/// Lists the options of a struct with LINKBOY_FIELDS that are functions, and thus not in the text.
#define LINKBOY_FUNCTIONS(...)                                              \
  /** Whether an option that is a function is set. */                       \
  bool has_functions() const { return ::linkboy::is_any_set(__VA_ARGS__); } \
  static_assert(true) /* a semicolon follows */

/// Lists the values of an enumeration, which are written as their names. Inside a class, write
/// `friend LINKBOY_ENUM_NAMES(Mode, min, max);`.
#define LINKBOY_ENUM_NAMES(Enum, ...)                                          \
  constexpr auto enum_names(Enum) {                                            \
    using enum Enum;                                                           \
    return std::pair(std::string_view(#__VA_ARGS__), std::array{__VA_ARGS__}); \
  }

namespace linkboy {

/// Keys and values, such as {"step_size", "2 * num_updates_per_epoch"}.
using TextSettings = std::vector<std::pair<std::string, std::string>>;

/// Returns the parts between separators: at least one, which may be empty. If all parentheses are
/// paired, separators inside them do not count: "min(100,200),300" has two parts.
LINKBOY_API std::vector<std::string> split_at(char separator, const std::string& text);

/// Returns the name at `index` in a list such as "a, b, c".
constexpr std::string_view nth_name(std::string_view names, std::size_t index) {
  for (; index > 0; --index) names.remove_prefix(names.find(',') + 1);
  names.remove_prefix(names.find_first_not_of(' '));
  return names.substr(0, names.find(','));
}

/// Returns the name of a value of an enumeration that has LINKBOY_ENUM_NAMES; "unknown" if the
/// value is not listed there.
template <class Enum>
constexpr std::string_view enum_name(Enum value) {
  const auto names = enum_names(value);
  const auto found = std::find(names.second.begin(), names.second.end(), value);
  if (found == names.second.end()) return "unknown";
  return nth_name(names.first, static_cast<std::size_t>(found - names.second.begin()));
}

/// Whether any of the functions is set; see LINKBOY_FUNCTIONS.
bool is_any_set(const auto&... functions) { return (static_cast<bool>(functions) || ...); }

/// Calls `visit(name, value)` for each of `values`, whose names are `names`; see LINKBOY_FIELDS.
template <class Visit, class... Values>
void visit_named(const Visit& visit, std::string_view names, Values&... values) {
  std::size_t index = 0;
  const auto visit_one = [&](auto& value) {
    const std::string_view name = nth_name(names, index++);
    using Value = std::remove_cvref_t<decltype(value)>;
    constexpr bool has_own_text = requires { Value::parse(std::string()); };
    if constexpr (!has_own_text && requires { value.visit_fields(visit); }) {
      value.visit_fields(visit);
    } else {
      visit(name, value);
    }
  };
  (visit_one(values), ...);
}

/// Parses an int64_t, a uint64_t or a double in the notation of the C locale.
/// @throws Error under the same conditions as `from_text`.
template <class Number>
LINKBOY_API Number number_from_text(const std::string& text);

/// Returns the shortest text that `number_from_text` converts to this number.
LINKBOY_API std::string number_to_text(double number);

/// Parses a duration with its unit, which is ns, us, ms, s, min or h: "1.5s".
/// @throws Error under the same conditions as `from_text`.
LINKBOY_API std::chrono::nanoseconds duration_from_text(const std::string& text);

/// Returns a text that `duration_from_text` accepts, in the largest unit in which the duration is a
/// whole number.
LINKBOY_API std::string duration_to_text(std::chrono::nanoseconds duration);

/// Parses a value of an enumeration that has LINKBOY_ENUM_NAMES.
/// @throws Error under the same conditions as `from_text`.
template <class Enum>
Enum enum_from_text(const std::string& text) {
  const auto names = enum_names(Enum{});
  for (std::size_t i = 0; i < names.second.size(); ++i) {
    if (nth_name(names.first, i) == text) return names.second[i];
  }
  throw OptionError("it must be one of " + std::string(names.first));
}

/// The character between the items of a list.
template <class Item>
inline constexpr char kListSeparator = std::is_enum_v<Item> ? '+' : ',';

/// Parses a number, bool, string, path, enumeration (LINKBOY_ENUM_NAMES), duration (with its unit:
/// "30s"), or a custom type with a static `parse`; also an optional or a vector of these. The items
/// of a vector are separated by commas, those of enumerations by '+'. Specialise it for a type with
/// additional texts, such as old names.
///
/// @throws Error with an incomplete message that describes the accepted form: "it must be a
///         number". The caller completes it.
template <class Value>
Value from_text(const std::string& text) {
  if constexpr (requires { typename Value::RequiredValue; }) {
    return from_text<typename Value::RequiredValue>(text);
  } else if constexpr (std::is_same_v<Value, bool>) {
    LINKBOY_CHECK_OPTION(text == "true" || text == "false", "it must be true or false");
    return text == "true";
  } else if constexpr (std::is_arithmetic_v<Value>) {
    return number_from_text<Value>(text);
  } else if constexpr (std::is_enum_v<Value>) {
    return enum_from_text<Value>(text);
  } else if constexpr (requires { Value::parse(text); }) {
    return Value::parse(text);
  } else if constexpr (requires { typename Value::rep; }) {
    const auto duration = duration_from_text(text);
    const auto value = std::chrono::duration_cast<Value>(duration);
    if constexpr (!std::chrono::treat_as_floating_point_v<typename Value::rep>) {
      LINKBOY_CHECK_OPTION(value == duration, "it must be a multiple of ",
                           duration_to_text(Value(1)));
    }
    return value;
  } else if constexpr (requires(Value optional) { optional.has_value(); }) {
    if (text == "none") return {};
    return from_text<typename Value::value_type>(text);
  } else if constexpr (std::is_constructible_v<Value, std::string>) {
    return text;
  } else {
    using Item = typename Value::value_type;
    Value items;
    for (const std::string& item : split_at(kListSeparator<Item>, text)) {
      items.push_back(from_text<Item>(item));
    }
    return items;
  }
}

/// Returns a text that `from_text` accepts; a custom type needs a `to_string`. An empty optional
/// becomes "none".
template <class Value>
std::string to_text(const Value& value) {
  if constexpr (requires { typename Value::RequiredValue; }) {
    return to_text(*value);
  } else if constexpr (std::is_same_v<Value, bool>) {
    return value ? "true" : "false";
  } else if constexpr (std::is_floating_point_v<Value>) {
    return number_to_text(value);
  } else if constexpr (std::is_integral_v<Value>) {
    return std::to_string(value);
  } else if constexpr (std::is_enum_v<Value>) {
    return std::string(enum_name(value));
  } else if constexpr (requires { value.to_string(); }) {
    return value.to_string();
  } else if constexpr (requires { typename Value::rep; }) {
    return duration_to_text(value);
  } else if constexpr (requires { value.has_value(); }) {
    return value ? to_text(*value) : "none";
  } else if constexpr (std::is_constructible_v<std::string, Value>) {
    return value;
  } else {
    std::string text;
    for (const auto& item : value) {
      if (!text.empty()) text += kListSeparator<typename Value::value_type>;
      text += to_text(item);
    }
    return text;
  }
}

/// Whether an options struct has LINKBOY_FIELDS.
template <class Options>
concept HasFields = requires(Options options) {
  options.visit_fields(0);
};

/// Returns the fields of `options`, in their order, with their values.
template <class Options>
TextSettings options_to_text(Options options) {
  TextSettings settings;
  options.visit_fields([&](std::string_view name, const auto& value) {
    settings.emplace_back(name, to_text(value));
  });
  return settings;
}

/// Returns the fields of `options` with their defaults; a Required one has "required".
template <class Options>
TextSettings defaults_to_text(Options options) {
  TextSettings defaults;
  options.visit_fields([&](std::string_view name, const auto& value) {
    using Value = std::remove_cvref_t<decltype(value)>;
    const bool is_required = requires { typename Value::RequiredValue; };
    defaults.emplace_back(name, is_required ? "required" : to_text(value));
  });
  return defaults;
}

/// Checks the keys of `settings`.
/// @throws OptionError if a key is not among `fields` (the message lists them) or occurs twice.
LINKBOY_API void check_keys(const std::string& owner, const TextSettings& fields,
                            const TextSettings& settings);

/// Completes the message of `from_text`: "lr is 'x'; it must be a number."
LINKBOY_API std::string wrong_value(const std::string& name, const std::string& text,
                                    const Error& error);

/// Returns `options` with the changes in `settings`.
///
/// @param owner  Description of the owner in errors: "scheduler step".
/// @throws OptionError if a key is not a field of the options (the message lists them) or occurs
///         twice, if its value cannot be parsed, or if a Required field is not set.
template <class Options>
Options options_from_text(const std::string& owner, const TextSettings& settings,
                          Options options = {}) {
  check_keys(owner, options_to_text(options), settings);
  options.visit_fields([&](std::string_view name, const auto& value) {
    if constexpr (requires { typename std::remove_cvref_t<decltype(value)>::RequiredValue; }) {
      const bool is_given = std::any_of(settings.begin(), settings.end(),
                                        [&](const auto& given) { return given.first == name; });
      LINKBOY_CHECK_OPTION(is_given, "the ", owner, "'s ", name, " is missing; it has no default.");
    }
  });
  for (const auto& setting : settings) {
    options.visit_fields([&](std::string_view name, auto& value) {
      if (name != setting.first) return;
      try {
        value = from_text<std::remove_reference_t<decltype(value)>>(setting.second);
      } catch (const Error& error) {
        throw OptionError(
            wrong_value("the " + owner + "'s " + setting.first, setting.second, error));
      }
    });
  }
  return options;
}

}  // namespace linkboy
