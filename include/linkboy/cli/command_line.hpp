#pragma once

#include <cmath>
#include <cstdint>
#include <deque>
#include <filesystem>
#include <functional>
#include <iosfwd>
#include <iterator>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "linkboy/error.hpp"
#include "linkboy/export.hpp"
#include "linkboy/util/make.hpp"
#include "linkboy/util/text_options.hpp"

/// Command lines for programs. This header belongs to the library `linkboy::cli`, which needs
/// Boost.Program_options.
///
///     struct Options { double lr = 0.1; std::optional<int64_t> max_steps; };
///
///     int main(int argc, char** argv) {
///       return linkboy::cli::run_main(argc, argv, [](const linkboy::cli::Arguments& arguments) {
///         Options options;
///         linkboy::cli::CommandLine command_line("train", "Trains a model.");
///         command_line.add_group("Training")
///             .add("lr", "X", &options.lr, "Learning rate.", linkboy::cli::not_negative())
///             .add("max-steps", "N", &options.max_steps, "Updates.", linkboy::cli::at_least(1));
///         if (!command_line.parse(arguments)) return;  // --help
///         ...
///       });
///     }
namespace linkboy::cli {

/// The command line or a config file is invalid.
class LINKBOY_API UsageError : public Error {
 public:
  using Error::Error;
};

/// Thrown to end the program with an exit status and without a message.
struct ExitStatus {
  /// The exit status; 0 means success.
  int status;
};

/// The arguments after the program's name.
using Arguments = std::vector<std::string>;

/// Runs `body` and returns an exit status: 0 if `body` returned, 2 if it threw UsageError or
/// OptionError, 1 if it threw any other exception, or the status of an ExitStatus. Returns 1 if
/// standard output could not be written, unless the status is 128 or more. Writes the exception's
/// message, without LibTorch's backtrace, to standard error as `PROGRAM: error: ...`. If a launcher
/// has set an environment variable with the rank, the form is `PROGRAM (rank 1): error: ...`. Never
/// throws.
LINKBOY_API int run_main(int argc, const char* const* argv,
                         const std::function<void(const Arguments&)>& body) noexcept;

/// Returns a check for values of at least `minimum`. A check for `OptionGroup::add` is a function
/// that returns an empty string for an accepted value, and otherwise a description of the accepted
/// values. Except for `any_value`, no check accepts NaN.
inline auto at_least(int64_t minimum) {
  return [minimum](auto value) -> std::string {
    return std::cmp_greater_equal(value, minimum) ? "" : "at least " + std::to_string(minimum);
  };
}
/// Returns a check for values from `minimum` to `maximum`, inclusive.
inline auto in_range(int64_t minimum, int64_t maximum) {
  return [minimum, maximum](auto value) -> std::string {
    const bool is_inside =
        std::cmp_greater_equal(value, minimum) && std::cmp_less_equal(value, maximum);
    return is_inside ? "" : std::to_string(minimum) + " to " + std::to_string(maximum);
  };
}
/// Returns a check for values above 0.
inline auto positive() {
  return [](double value) -> std::string { return value > 0.0 ? "" : "greater than 0"; };
}
/// Returns a check for finite values of 0 or more.
inline auto not_negative() {
  return [](double value) -> std::string {
    return value >= 0.0 && std::isfinite(value) ? "" : "a finite number of 0 or more";
  };
}

/// Returns a check that accepts every value.
inline auto any_value() {
  return [](const auto&) -> std::string { return ""; };
}

/// The name of an object to create, such as an optimizer or a callback, and the options that differ
/// from its defaults.
struct LINKBOY_API NamedSettings {
  /// Name of the object: "early-stopping".
  std::string name;
  /// Options that differ from the defaults: {"patience", "3"}.
  TextSettings settings;

  /// Constructs settings without a name.
  NamedSettings() = default;
  /// Stores a name and settings.
  NamedSettings(std::string its_name, TextSettings its_settings)
      : name(std::move(its_name)), settings(std::move(its_settings)) {}
  /// Converts an object of linkboy, or a function that creates one: `adamw({.lr = 0.01})`,
  /// `early_stopping({.patience = 3})`.
  /// @throws OptionError if the object does not have a name in text, or if an option is set that
  ///         `docs/options.md` marks "not as text".
  NamedSettings(const Recipe& recipe);  // NOLINT(google-explicit-constructor)

  /// Parses "early-stopping:patience=3,min_delta=0.1" or the JSON object
  /// `{"name": "early-stopping", "patience": 3}`. A comma within a value does not separate options:
  /// "milestones=10,20".
  /// @throws OptionError that describes the accepted form.
  [[nodiscard]] static NamedSettings parse(const std::string& text);
  /// Returns a text that `parse` accepts.
  std::string to_string() const;
};

/// The objects that `OptionGroup::add_named` accepts.
struct NamedChoices {
  /// The accepted names: "early-stopping", "model-ema", ...
  std::vector<std::string> names;
  /// Returns the options of the object called `name`, with their defaults.
  /// @throws Error if there is no such name.
  std::function<TextSettings(const std::string& name)> options;
};

/// The help text of a field of an options struct. A struct can list the help texts of its fields:
///
///     struct NetOptions {
///       int64_t width = 64;
///       LINKBOY_FIELDS(width);
///       static constexpr linkboy::cli::FieldHelp kFieldHelp[] = {
///           {"width", "Number of neurons in each hidden layer."}};
///     };
struct FieldHelp {
  /// Name of the field.
  std::string_view field;
  /// A noun phrase or a sentence.
  std::string_view text;
};

/// A group of options under one heading of `--help`.
class LINKBOY_API OptionGroup {
 public:
  /// Constructs an empty group with the heading `title`.
  explicit OptionGroup(std::string title) : title_(std::move(title)) {}

  /// Adds an option `--name VALUE`. Its default is the current value of `target`.
  ///
  /// @param value_name  Placeholder for the value in `--help`: "N", "FILE".
  /// @param target  Variable of a type that `from_text` accepts. It must outlive the CommandLine;
  ///        only `CommandLine::parse` changes it.
  /// @param check  One of the checks above, or a custom function.
  template <class T, class Check = decltype(any_value())>
  OptionGroup& add(std::string name, std::string value_name, T* target, std::string help,
                   Check check = {}) {
    const auto assign = [target, check](const std::string& text) {
      T value = from_text<T>(text);
      std::string allowed;
      if constexpr (requires { value.has_value(); }) {
        if (value) allowed = check(*value);
      } else {
        allowed = check(value);
      }
      LINKBOY_CHECK(allowed.empty(), "it must be ", allowed);
      *target = std::move(value);
    };
    return add_option({.name = std::move(name),
                       .value_name = std::move(value_name),
                       .default_text = to_text(*target),
                       .help = std::move(help),
                       .is_bool = std::is_same_v<T, bool> || std::is_same_v<T, std::optional<bool>>,
                       .assign = assign,
                       .values = [target] { return std::vector{to_text(*target)}; }});
  }

  /// Adds an option `--PREFIX.FIELD` for each of the LINKBOY_FIELDS of `*options`, or `--FIELD` if
  /// `prefix` is empty. In a JSON config file, the fields are the members of an object PREFIX.
  /// @param options  Must outlive the CommandLine; only `CommandLine::parse` changes it. Its type
  ///        can list the help texts of its fields; see FieldHelp.
  /// @throws OptionError if a help text belongs to no field.
  template <class Options>
  OptionGroup& add_fields(const std::string& prefix, Options* options) {
    std::size_t num_described = 0;
    options->visit_fields([&](std::string_view field, auto& value) {
      using Value = std::remove_reference_t<decltype(value)>;
      std::string help;
      if constexpr (requires { Options::kFieldHelp; }) {
        for (const FieldHelp& of_field : Options::kFieldHelp) {
          if (of_field.field != field) continue;
          help = of_field.text;
          ++num_described;
        }
      }
      add((prefix.empty() ? "" : prefix + ".") + std::string(field), value_name_of<Value>(), &value,
          std::move(help));
    });
    if constexpr (requires { Options::kFieldHelp; }) {
      LINKBOY_CHECK_OPTION(num_described == std::size(Options::kFieldHelp), "kFieldHelp describes ",
                           std::size(Options::kFieldHelp), " fields, of which LINKBOY_FIELDS has ",
                           num_described, "; it must describe existing fields, each once.");
    }
    return *this;
  }

  /// Adds an option `--name NAME[:KEY=VALUE,...]`. An object with the name of a default keeps the
  /// default's options that are not given. `parse` throws UsageError for a name or a key that is
  /// not among the choices.
  /// @param target  NamedSettings, or an optional, which "none" resets: `--name.KEY VALUE` sets one
  ///        option of the object, which is an object in a JSON config file as well:
  ///        `{"name": "sgd", "lr": 0.1}`. For a std::vector of NamedSettings, the option may be
  ///        given several times; in a JSON config file, it is an array.
  template <class Target>
  OptionGroup& add_named(std::string name, Target* target, NamedChoices choices, std::string help);

  /// Adds an option `--name` without a value, which sets `target` to true. In a config file, write
  /// `name=true`.
  OptionGroup& add_switch(std::string name, bool* target, std::string help);

  /// Adds an option that may be given several times, and collects its values in order. Values on
  /// the command line replace all values from a config file.
  OptionGroup& add_list(std::string name, std::string value_name, std::vector<std::string>* target,
                        std::string help);

 private:
  friend class CommandLine;

  struct Option {
    std::string name;
    std::string value_name{};
    std::string default_text{};
    std::string help{};
    bool is_general = false;  // of the CommandLine itself
    bool is_bool = false;
    bool is_switch = false;
    bool is_list = false;
    bool is_named = false;
    /// Keys that can be set individually if the option is named.
    std::vector<std::string> keys{};
    /// Throws the same errors as `from_text`.
    std::function<void(const std::string& text)> assign{};
    std::function<void(const std::string& key, const std::string& text)> assign_key{};
    /// Clears the target of a list, before its first item.
    std::function<void()> clear{};
    /// Returns the target's current value: one text, or any number for lists. If the option is
    /// named, they are JSON objects with all options.
    std::function<std::vector<std::string>()> values{};
    /// Throws if the named object does not exist.
    std::function<void()> check = [] {};
    /// Lists the accepted names with their options and defaults.
    std::function<std::string()> choices{};
  };

  /// The placeholder for a value in `--help`: "N", "PATH", "true|false", "fp32|bf16|fp16".
  template <class Value>
  static std::string value_name_of() {
    if constexpr (requires { typename Value::RequiredValue; }) {
      return value_name_of<typename Value::RequiredValue>();
    } else if constexpr (std::is_same_v<Value, bool>) {
      return "true|false";
    } else if constexpr (std::is_integral_v<Value>) {
      return "N";
    } else if constexpr (std::is_floating_point_v<Value>) {
      return "X";
    } else if constexpr (std::is_enum_v<Value>) {
      return alternatives(enum_names(Value{}).first);
    } else if constexpr (std::is_same_v<Value, std::filesystem::path>) {
      return "PATH";
    } else if constexpr (requires { typename Value::rep; }) {
      return "TIME";
    } else if constexpr (requires(Value optional) { optional.has_value(); }) {
      return value_name_of<typename Value::value_type>();
    } else {
      return "VALUE";
    }
  }

  static std::string alternatives(std::string_view names);
  OptionGroup& add_option(Option option);

  std::string title_;
  std::vector<Option> options_;
};

/// The options that a program accepts, on the command line and in the `--config` file.
///
/// A config file is a JSON object: `{"epochs": 7, "callbacks": ["time-limit:max_time=5min"]}`. The
/// name of a nested object is a prefix of the names in it: `{"train": {"num_epochs": 7}}` sets
/// `train.num_epochs`. The file may also have one `name=value` per line. A `#` at the beginning of
/// a line or after a blank begins a comment. The command line overrides the file. `--help`,
/// `--config` and `--print-config` always exist, and `--list` exists if an option was added with
/// `add_named`.
///
/// The last parts of an option's name, as in `--num_epochs 7`, are sufficient if no other name ends
/// with them. `-` and `_` are equivalent. `--name` alone sets a bool of `add` or
/// `add_fields` to true.
class LINKBOY_API CommandLine {
 public:
  /// @param description  Description of the program in one or two sentences; `--help` begins with
  ///        it.
  CommandLine(std::string program, std::string description);
  CommandLine(const CommandLine&) = delete;
  CommandLine& operator=(const CommandLine&) = delete;

  /// Adds a group with a heading. The returned reference stays valid.
  OptionGroup& add_group(std::string title);

  /// Adds another name for the option `name`, or for a key of a named option ("optimizer.lr"), on
  /// the command line and in config files.
  /// @throws Error if there is no such option.
  CommandLine& add_alias(std::string alias, const std::string& name);

  /// Sets the targets of all given options.
  ///
  /// @return False if `--help`, `--list` or `--print-config` was given; `parse` has then written
  ///         the requested text to `out`. After `--help` and `--list`, no target has changed.
  /// @throws UsageError if an option is unknown (the message suggests the closest one), is given
  ///         twice (except for lists), lacks its value or has an invalid one; if the config file
  ///         cannot be read, has a line that is not `name=value`, or is not valid JSON. Messages
  ///         about the config file begin with its path and the number of the line; Error if two
  ///         options have the same name.
  [[nodiscard]] bool parse(const Arguments& arguments, std::ostream& out);
  /// Like the other overload, but writes the text to standard output.
  [[nodiscard]] bool parse(const Arguments& arguments);

  /// Returns the text that `--help` prints.
  std::string help() const;

  /// Returns the text that `--print-config` prints: a JSON object of all options with the current
  /// values of their targets, in a form that `--config` accepts.
  std::string config() const;

 private:
  using Option = OptionGroup::Option;

  /// A name that can be given, and its option, or the key of a named option.
  struct Name {
    std::string name;
    const Option* option = nullptr;
    std::string key{};
  };

  /// An option's value and its origin: "--lr" or "run.json: lr".
  struct Setting {
    Name name;
    std::optional<std::string> text;  // nullopt for an empty list
    std::string origin;
  };

  std::vector<Name> names(bool in_file) const;
  std::vector<Name> find(std::string name, bool in_file) const;
  Name find_one(const std::string& name, const std::string& place) const;
  bool is_hidden(const Option& option) const;
  static auto same_as(const Setting& setting);
  static void check_unique(const std::vector<Setting>& settings);
  std::string list(const std::string& name) const;
  std::string help_of(const Option& option) const;
  std::vector<Setting> read_arguments(const Arguments& arguments) const;
  std::vector<Setting> read_config_file(const std::filesystem::path& path) const;
  std::vector<Setting> read_json(const std::string& content, const std::string& place) const;
  Setting setting_from_file(const std::string& place, const std::string& name,
                            const std::string& text) const;

  std::string program_;
  std::string description_;
  std::deque<OptionGroup> groups_;
  std::vector<std::pair<std::string, std::string>> aliases_;  // and the names that they stand for
  bool help_ = false;
  bool print_config_ = false;
  std::string list_;
  std::filesystem::path config_;
};

}  // namespace linkboy::cli
