// Options as text, on a command line or in a configuration file: the fields of an options struct,
// how their values are read and written, and what is made by name from them.

#pragma once

#include <algorithm>
#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "linkboy/error.hpp"
#include "linkboy/export.hpp"

/// Names, in an options struct, the members that text can set: the name of a member is its key. A
/// member that has fields itself adds them to those of the struct.
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

/// Names the values of an enumeration, which are its texts. Inside of a class, write
/// `friend LINKBOY_ENUM_NAMES(Mode, min, max);`.
#define LINKBOY_ENUM_NAMES(Enum, ...)                                          \
  constexpr auto enum_names(Enum) {                                            \
    using enum Enum;                                                           \
    return std::pair(std::string_view(#__VA_ARGS__), std::array{__VA_ARGS__}); \
  }

namespace linkboy {

/// Keys with values: {"step_size", "2 * num_updates_per_epoch"}.
using TextSettings = std::vector<std::pair<std::string, std::string>>;

/// Returns the parts between separators; at least one, perhaps empty. If parentheses come in pairs,
/// a separator inside of them does not count: "min(100,200),300" has two parts.
LINKBOY_API std::vector<std::string> split_at(char separator, const std::string& text);

/// Returns the word at `index` of "a, b, c".
constexpr std::string_view nth_name(std::string_view names, std::size_t index) {
  for (; index > 0; --index) names.remove_prefix(names.find(',') + 1);
  names.remove_prefix(names.find_first_not_of(' '));
  return names.substr(0, names.find(','));
}

/// Returns the name of a value with LINKBOY_ENUM_NAMES.
template <class Enum>
constexpr std::string_view enum_name(Enum value) {
  const auto names = enum_names(value);
  const auto found = std::find(names.second.begin(), names.second.end(), value);
  if (found == names.second.end()) return "unknown";
  return nth_name(names.first, static_cast<std::size_t>(found - names.second.begin()));
}

/// Calls `visit(name, value)` for each of `values`, which have these names: see LINKBOY_FIELDS.
template <class Visit, class... Values>
void visit_named(const Visit& visit, std::string_view names, Values&... values) {
  std::size_t index = 0;
  const auto visit_one = [&](auto& value) {
    const std::string_view name = nth_name(names, index++);
    if constexpr (requires { value.visit_fields(visit); }) {
      value.visit_fields(visit);
    } else {
      visit(name, value);
    }
  };
  (visit_one(values), ...);
}

/// Reads an int64_t, a uint64_t or a double as the C locale has them.
/// @throws Error as `from_text`.
template <class Number>
LINKBOY_API Number number_from_text(const std::string& text);

/// Returns the shortest text that `number_from_text` reads as this number.
LINKBOY_API std::string number_to_text(double number);

/// Reads a duration with its unit, which is ns, us, ms, s, min or h: "1.5s".
/// @throws Error as `from_text`.
LINKBOY_API std::chrono::nanoseconds duration_from_text(const std::string& text);

/// Returns what `duration_from_text` reads, in the largest unit of which it is a whole number.
LINKBOY_API std::string duration_to_text(std::chrono::nanoseconds duration);

/// Reads a value with LINKBOY_ENUM_NAMES.
/// @throws Error as `from_text`.
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

/// Reads a number, bool, string, path, enumeration (LINKBOY_ENUM_NAMES), duration (with its
/// unit: "30s"), or a type of your own with a static `parse`; also an optional or a vector of
/// these. A vector's items have commas between them, enumerations '+'. Specialise it for a type
/// that has other texts as well, such as old names.
///
/// @throws Error that says what the text must be: "it must be a number". The caller completes it.
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
    return std::chrono::duration_cast<Value>(duration_from_text(text));
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

/// Writes what `from_text` reads; a type of your own has a `to_string` for it. An empty optional is
/// "none".
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

/// Returns the fields of `options`, in their order, with their values.
template <class Options>
TextSettings options_to_text(Options options) {
  TextSettings settings;
  options.visit_fields([&](std::string_view name, const auto& value) {
    settings.emplace_back(name, to_text(value));
  });
  return settings;
}

/// A key of an earlier version of linkboy, which texts may still have. An options struct lists its
/// own, and those of members that have fields, in `static constexpr FormerKey kFormerKeys[]`.
struct FormerKey {
  /// "warmup_t".
  std::string_view name;
  /// The field that it sets: "warmup_updates".
  std::string_view now;
  /// Follows the value in parentheses if its unit was another one: " * num_updates_per_epoch".
  std::string_view unit{};
};

/// Returns the settings with today's keys in place of former ones.
LINKBOY_API TextSettings replace_former_keys(TextSettings settings,
                                             std::span<const FormerKey> former);

/// Returns NAME on a line, and each of `fields` below it with its value: for `--list-callbacks`.
LINKBOY_API std::string list_fields(const std::string& name, const TextSettings& fields);

/// @throws Error unless each of `settings` has a key of `fields` (the message lists them), once.
LINKBOY_API void check_keys(const std::string& owner, const TextSettings& fields,
                            const TextSettings& settings);

/// Completes the message of `from_text`: "lr is 'x'; it must be a number."
LINKBOY_API std::string wrong_value(const std::string& name, const std::string& text,
                                    const Error& error);

/// Returns `options`, changed where `settings` says something.
///
/// @param owner  As errors call it: "scheduler step".
/// @throws Error if a key is not a field of the options (the message lists them) or is given twice,
///         its value cannot be read, or a Required one is not given.
template <class Options>
Options options_from_text(const std::string& owner, TextSettings settings, Options options = {}) {
  if constexpr (requires { Options::kFormerKeys; }) {
    settings = replace_former_keys(std::move(settings), Options::kFormerKeys);
  }
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

/// Makes objects of one kind by name: callbacks, schedulers.
template <class Made>
class MadeByName {
 public:
  /// A name and what it takes to make the object.
  struct Entry {
    /// "early-stopping".
    std::string name;
    /// The options with their defaults.
    TextSettings options;
    /// Makes it; the first argument is the owner for `options_from_text`.
    std::function<Made(const std::string& owner, const TextSettings& settings)> make;
  };

  /// An object that `make` makes from Options.
  /// @param options  What holds where the text says nothing.
  template <class Options, class Make>
  static Entry entry(std::string name, Make make, Options options = {}) {
    return {std::move(name), options_to_text(options),
            [make, options](const std::string& owner, const TextSettings& settings) {
              return make(options_from_text<Options>(owner, settings, options));
            }};
  }

  /// @param kind  As errors call it: "callback".
  /// @param former  Entries under names of earlier versions, which are read, but not listed.
  MadeByName(std::string kind, std::vector<Entry> entries, std::vector<Entry> former = {})
      : kind_(std::move(kind)), entries_(std::move(entries)), former_(std::move(former)) {}

  /// @throws Error if there is no such name; otherwise as `options_from_text`.
  Made make(const std::string& name, const TextSettings& settings) const {
    return find(name).make(kind_ + " " + name, settings);
  }

  /// Returns the names in their order.
  std::vector<std::string> names() const {
    std::vector<std::string> names;
    for (const Entry& entry : entries_) names.push_back(entry.name);
    return names;
  }

  /// @throws Error that lists the names if there is no such one.
  const Entry& find(const std::string& name) const {
    for (const auto* entries : {&entries_, &former_}) {
      for (const Entry& entry : *entries) {
        if (entry.name == name) return entry;
      }
    }
    throw OptionError(c10::str("there is no ", kind_, " \"", name, "\"; there are ",
                               c10::Join(", ", names()), "."));
  }

 private:
  std::string kind_;
  std::vector<Entry> entries_;
  std::vector<Entry> former_;
};

}  // namespace linkboy
