// Options aggregates whose members are given as text, by name: on a command line, in a config file.

#pragma once

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "linkboy/error.hpp"
#include "linkboy/export.hpp"

namespace linkboy {

/// Names with values: {"step_size", "2 * NUM_UPDATE_STEPS_PER_EPOCH"}.
using TextSettings = std::vector<std::pair<std::string, std::string>>;

/// Reads a value. What the text must be, if it is not, is thrown as an Error ("it must be a
/// number"), which whoever knows the option completes. For a type of one's own, overload it in the
/// type's namespace.
/// @{
LINKBOY_API void read_text(const std::string& text, int64_t& value);
LINKBOY_API void read_text(const std::string& text, double& value);
LINKBOY_API void read_text(const std::string& text, bool& value);
LINKBOY_API void read_text(const std::string& text, std::string& value);
LINKBOY_API void read_text(const std::string& text, std::filesystem::path& value);

template <class Value>
void read_text(const std::string& text, std::optional<Value>& value) {
  if constexpr (std::is_default_constructible_v<Value>) {
    read_text(text, value.emplace());
  } else {
    read_text(text, value.emplace(0.0));
  }
}
/// @}

/// Returns the value that `text` stands for: `from_text<Precision>("bf16")`.
/// @throws Error as `read_text`.
template <class Value>
Value from_text(const std::string& text) {
  Value value{};
  read_text(text, value);
  return value;
}

/// For enumerations.
template <class Value>
void read_text_choice(const std::string& text, Value& value,
                      const std::vector<std::pair<std::string, Value>>& choices) {
  std::string all;
  for (const auto& [name, choice] : choices) {
    if (text == name) {
      value = choice;
      return;
    }
    all += (all.empty() ? "" : ", ") + name;
  }
  throw OptionError("it must be one of " + all);
}

/// Returns the parts between separators; at least one, perhaps empty. Where parentheses come in
/// pairs, a separator inside of them does not count: "min(100,200),300" has two parts.
LINKBOY_API std::vector<std::string> split_at(char separator, const std::string& text);

/// "a, b, c".
LINKBOY_API std::string join_with_commas(const std::vector<std::string>& words);

/// A member of an options aggregate and its name in text.
template <class Options>
struct TextOption {
  /// A member whose type has a `read_text`.
  template <class Value>
  TextOption(const char* name, Value Options::*member)
      : key(name), set([member](Options& options, const std::string& text) {
          read_text(text, options.*member);
        }) {}

  /// One that is not a member as it stands.
  TextOption(const char* name, std::function<void(Options&, const std::string&)> setter)
      : key(name), set(std::move(setter)) {}

  /// Its name.
  std::string key;
  /// Reads the text into the options; throws as `read_text`.
  std::function<void(Options&, const std::string&)> set;
};

/// The names, in the order of the options.
template <class Options>
std::vector<std::string> keys_of(const std::vector<TextOption<Options>>& options) {
  std::vector<std::string> keys;
  keys.reserve(options.size());
  for (const auto& option : options) keys.push_back(option.key);
  return keys;
}

/// Options with the defaults where `settings` says nothing.
///
/// @param owner  As errors call it: "scheduler step".
/// @throws Error if a key is not one of `options` (the message lists them), is given twice, or its
///         value cannot be read.
template <class Options>
Options options_from_text(const std::string& owner, const std::vector<TextOption<Options>>& options,
                          const TextSettings& settings) {
  Options values{};
  std::vector<std::string> given;
  for (const auto& setting : settings) {
    const std::string& key = setting.first;
    const auto option = std::find_if(options.begin(), options.end(),
                                     [&](const auto& known) { return known.key == key; });
    if (option == options.end()) {
      const std::string keys = join_with_commas(keys_of(options));
      throw OptionError(c10::str("the ", owner, " has no option \"", key, "\"; ",
                                 keys.empty() ? "it has none" : "it has " + keys, "."));
    }
    LINKBOY_CHECK_OPTION(std::find(given.begin(), given.end(), key) == given.end(), "the ", owner,
                         "'s ", key, " is given a second time; give each option once.");
    given.push_back(key);
    try {
      option->set(values, setting.second);
    } catch (const Error& error) {
      throw OptionError(
          c10::str("the ", owner, "'s ", key, " is \"", setting.second, "\": ", error.what(), "."));
    }
  }
  return values;
}

}  // namespace linkboy
