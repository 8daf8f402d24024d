#pragma once

#include <cmath>
#include <cstdint>
#include <deque>
#include <filesystem>
#include <functional>
#include <iosfwd>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "linkboy/error.hpp"
#include "linkboy/export.hpp"
#include "linkboy/util/text_options.hpp"

/// Command lines for programs: part of `linkboy::cli`, which needs Boost.Program_options.
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

/// The command line or a config file says something that the program does not take.
class LINKBOY_API UsageError : public Error {
 public:
  using Error::Error;
};

/// Thrown to end the program with an exit status and without a message.
struct ExitStatus {
  /// 0 for success.
  int status;
};

/// What follows the program's name.
using Arguments = std::vector<std::string>;

/// Runs `body` and turns its end into an exit status: 0 if it returned, 1 if it threw, 2 if it
/// threw UsageError, the status of an ExitStatus; 1 if standard output could not be written. The
/// exception's message goes to standard error as `PROGRAM: error: ...`, or
/// `PROGRAM (rank 1): error: ...` if a launcher's variable has the rank, without LibTorch's
/// backtrace. Never throws.
LINKBOY_API int run_main(int argc, const char* const* argv,
                         const std::function<void(const Arguments&)>& body) noexcept;

/// Splits "key=value" texts, the values of the option `name`, at their first '='.
/// @throws UsageError if one has no '=' or no key.
LINKBOY_API TextSettings split_settings(const std::string& name,
                                        const std::vector<std::string>& texts);

/// Checks for `OptionGroup::add`: functions that return what is allowed if the value is not, else
/// an empty string. NaN passes none of these.
inline auto at_least(int64_t minimum) {
  return [minimum](auto value) -> std::string {
    return std::cmp_greater_equal(value, minimum) ? "" : "at least " + std::to_string(minimum);
  };
}
/// From `minimum` to `maximum`, both included.
inline auto in_range(int64_t minimum, int64_t maximum) {
  return [minimum, maximum](auto value) -> std::string {
    const bool is_inside =
        std::cmp_greater_equal(value, minimum) && std::cmp_less_equal(value, maximum);
    return is_inside ? "" : std::to_string(minimum) + " to " + std::to_string(maximum);
  };
}
/// Above 0.
inline auto positive() {
  return [](double value) -> std::string { return value > 0.0 ? "" : "greater than 0"; };
}
/// Finite, and 0 or above.
inline auto not_negative() {
  return [](double value) -> std::string {
    return value >= 0.0 && std::isfinite(value) ? "" : "a finite number of 0 or more";
  };
}

/// The check of options that have none.
inline auto any_value() {
  return [](const auto&) -> std::string { return ""; };
}

/// A thing that is made by name, with the options that differ from its defaults: an optimizer, a
/// callback.
struct LINKBOY_API NamedSettings {
  /// "early-stopping".
  std::string name{};
  /// {"patience", "3"}.
  TextSettings settings{};

  /// Reads "early-stopping:patience=3,min_delta=0.1" or the JSON object `{"name":
  /// "early-stopping", "patience": 3}`. A comma in a value does not separate: "milestones=10,20".
  /// @throws Error that says what the text must be.
  static NamedSettings parse(const std::string& text);
  /// Returns what `parse` reads.
  std::string to_string() const;
};

/// What can be made by name, for `OptionGroup::add_named`.
struct NamedChoices {
  /// "early-stopping", "model-ema", ...
  std::vector<std::string> names;
  /// Returns the options of one of them with their defaults. @throws Error if there is no such
  /// name.
  std::function<TextSettings(const std::string& name)> options;
};

/// Options under one heading of `--help`.
class LINKBOY_API OptionGroup {
 public:
  /// `title` is the heading.
  explicit OptionGroup(std::string title) : title_(std::move(title)) {}

  /// An option `--name VALUE`; its default is what `target` holds now.
  ///
  /// @param value_name  What stands for the value in `--help`: "N", "FILE".
  /// @param target  Of a type that `from_text` reads. Must outlive the CommandLine; changed by
  ///        `CommandLine::parse` only.
  /// @param check  One of those above, or a function of your own.
  template <class T, class Check = decltype(any_value())>
  OptionGroup& add(std::string name, std::string value_name, T* target, std::string help,
                   Check check = {}) {
    return add_option({.name = std::move(name),
                       .value_name = std::move(value_name),
                       .default_text = to_text(*target),
                       .help = std::move(help),
                       .assign = assign_to<T>(target, check),
                       .values = text_of(target)});
  }

  /// An option without a default.
  template <class T, class Check = decltype(any_value())>
  OptionGroup& add(std::string name, std::string value_name, std::optional<T>* target,
                   std::string help, Check check = {}) {
    return add_option({.name = std::move(name),
                       .value_name = std::move(value_name),
                       .help = std::move(help),
                       .assign = assign_to<T>(target, check),
                       .values = text_of(target)});
  }

  /// An option `--PREFIX.FIELD` for each of the LINKBOY_FIELDS of `*options`; in a JSON config file
  /// they are the members of an object PREFIX. If `prefix` is empty, `--FIELD`.
  /// @param options  As `target` of `add`.
  template <class Options>
  OptionGroup& add_fields(const std::string& prefix, Options* options) {
    options->visit_fields([&](std::string_view field, auto& value) {
      using Value = std::remove_reference_t<decltype(value)>;
      add_option({.name = (prefix.empty() ? "" : prefix + ".") + std::string(field),
                  .value_name = "VALUE",
                  .default_text = to_text(value),
                  .assign = [&value](const std::string& text) { value = from_text<Value>(text); },
                  .values = text_of(&value)});
    });
    return *this;
  }

  /// An option `--name NAME[:KEY=VALUE,...]`; `--name.KEY VALUE` sets one option of what is named.
  /// In a JSON config file it is an object: `{"name": "sgd", "lr": 0.1}`. A name or a key that is
  /// not among the choices is a UsageError.
  /// @{
  OptionGroup& add_named(std::string name, NamedSettings* target, NamedChoices choices,
                         std::string help);
  /// "none" for nothing.
  OptionGroup& add_named(std::string name, std::optional<NamedSettings>* target,
                         NamedChoices choices, std::string help);
  /// Any number of them, in their order; an array in a JSON config file.
  OptionGroup& add_named_list(std::string name, std::vector<NamedSettings>* target,
                              NamedChoices choices, std::string help);
  /// @}

  /// An option `--name` that takes no value and sets `target`; `name=true` in a config file.
  OptionGroup& add_switch(std::string name, bool* target, std::string help);

  /// An option that may be given several times: all its values, in their order. Those on the
  /// command line replace all of a config file.
  OptionGroup& add_list(std::string name, std::string value_name, std::vector<std::string>* target,
                        std::string help);

  /// An option that takes one of `choices`.
  OptionGroup& add_choice(std::string name, std::string* target, std::vector<std::string> choices,
                          std::string help);

 private:
  friend class CommandLine;

  struct Option {
    std::string name;
    std::string value_name{};
    std::string default_text{};
    std::string help{};
    bool is_switch = false;
    bool is_list = false;
    bool is_named = false;
    /// What may be set one by one, if it is named.
    std::vector<std::string> keys{};
    /// Throws as `from_text`.
    std::function<void(const std::string& text)> assign{};
    std::function<void(const std::string& key, const std::string& text)> assign_key{};
    /// Empties the target of a list, before its first item.
    std::function<void()> clear{};
    /// What the target holds now: one text, but for lists. If it is named, JSON objects with all
    /// options.
    std::function<std::vector<std::string>()> values{};
    /// Throws if what is named is not there.
    std::function<void()> check = [] {};
    /// What can be named, with the options and their defaults.
    std::function<std::string()> choices{};
  };

  template <class T>
  static auto text_of(const T* target) {
    return [target] { return std::vector<std::string>{to_text(*target)}; };
  }

  template <class T>
  static auto assign_to(auto* target, auto check) {
    return [=](const std::string& text) {
      auto value = from_text<T>(text);
      const std::string allowed = check(value);
      LINKBOY_CHECK(allowed.empty(), "it must be ", allowed);
      *target = std::move(value);
    };
  }

  OptionGroup& add_option(Option option);

  std::string title_;
  std::vector<Option> options_;
};

/// The options that a program takes, on the command line and in the file that `--config` names.
///
/// A config file has one `name=value` a line, without dashes; blank lines and lines that start
/// with `#` are skipped, and so is the rest of a line from a `#` after a space. Or it is a JSON
/// object: `{"epochs": 7, "callbacks": ["time-limit:minutes=5"]}`; an object in it holds options
/// with its name and a dot in front: `{"train": {"num_epochs": 7}}` is `--train.num_epochs 7`. What
/// the command line says wins over the file. `--help`, `--config` and `--print-config` are there
/// without being added, and `--list` if something is made by name.
///
/// The parts of a name that end it do as well, if no other option ends so: `--num_epochs 7`. A `-`
/// is as good as a `_`.
class LINKBOY_API CommandLine {
 public:
  /// @param description  What the program does, in a sentence or two; `--help` begins with it.
  CommandLine(std::string program, std::string description);
  CommandLine(const CommandLine&) = delete;
  CommandLine& operator=(const CommandLine&) = delete;

  /// The reference stays valid.
  OptionGroup& add_group(std::string title);

  /// Gives the option `name`, or KEY of a named one ("optimizer.lr"), a second name on the command
  /// line and in config files.
  /// @throws Error if there is no such option.
  CommandLine& add_alias(std::string alias, const std::string& name);

  /// Sets the targets of all options that are given.
  ///
  /// @return False if `--help`, `--list` or `--print-config` was given: the answer is on `out`. No
  ///         target has changed after `--help` and `--list`.
  /// @throws UsageError if an option is unknown (the message names the closest), given twice (but
  ///         for lists), lacks its value or has a bad one; for the config file also if it cannot be
  ///         read or has a line that is no `name=value`: the message begins with FILE:LINE.
  bool parse(const Arguments& arguments, std::ostream& out);
  /// As above, with the answer on standard output.
  bool parse(const Arguments& arguments);

  /// What `--help` prints.
  std::string help() const;

  /// What `--print-config` prints: a JSON object of all options with the values that their targets
  /// hold now, as `--config` reads it.
  std::string config() const;

 private:
  using Option = OptionGroup::Option;

  /// An option's value and who gave it: "--lr" or "run.conf:3: lr".
  struct Setting {
    const Option* option;
    std::string key;  // of what is named; empty for the whole
    std::string text;
    std::string origin;
    bool is_empty_list = false;
  };

  /// An option, or a key of one.
  struct Found {
    const Option* option = nullptr;
    std::string key{};
  };

  /// Another name of an option, or of a key of it.
  struct Alias {
    std::string alias;
    std::string name;
  };

  template <class Visit>
  void for_each_option(const Visit& visit) const;
  std::vector<std::string> names_ending_in(const std::string& name) const;
  /// By its whole name, an alias or an end that it alone has; otherwise without an option.
  Found find(const std::string& name) const;
  /// @throws UsageError that begins with `shown` and names the closest option.
  Found find(const std::string& name, const std::string& shown, const std::string& dashes) const;
  bool names_anything() const;
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
  std::vector<Alias> aliases_;
  bool help_ = false;
  bool print_config_ = false;
  std::string list_;
  std::filesystem::path config_;
};

}  // namespace linkboy::cli
