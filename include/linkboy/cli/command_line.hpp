#pragma once

#include <cmath>
#include <cstdint>
#include <deque>
#include <filesystem>
#include <functional>
#include <iosfwd>
#include <optional>
#include <string>
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
/// exception's message goes to standard error as `PROGRAM: error: ...`, without LibTorch's
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
                       .assign = assign_to<T>(target, check)});
  }

  /// An option without a default.
  template <class T, class Check = decltype(any_value())>
  OptionGroup& add(std::string name, std::string value_name, std::optional<T>* target,
                   std::string help, Check check = {}) {
    return add_option({.name = std::move(name),
                       .value_name = std::move(value_name),
                       .help = std::move(help),
                       .assign = assign_to<T>(target, check)});
  }

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
    std::string help;
    bool is_switch = false;
    bool is_list = false;
    /// Throws as `from_text`.
    std::function<void(const std::string& text)> assign;
  };

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
/// object: `{"epochs": 7, "callbacks": ["timer:minutes=5"]}`. What the command line says wins over
/// the file. `--help` and `--config` are there without being added.
class LINKBOY_API CommandLine {
 public:
  /// @param description  What the program does, in a sentence or two; `--help` begins with it.
  CommandLine(std::string program, std::string description);
  CommandLine(const CommandLine&) = delete;
  CommandLine& operator=(const CommandLine&) = delete;

  /// The reference stays valid.
  OptionGroup& add_group(std::string title);

  /// Sets the targets of all options that are given.
  ///
  /// @return False if `--help` was given: the help is on `out`, no target has changed.
  /// @throws UsageError if an option is unknown (the message names the closest), given twice (but
  ///         for lists), lacks its value or has a bad one; for the config file also if it cannot be
  ///         read or has a line that is no `name=value`: the message begins with FILE:LINE.
  bool parse(const Arguments& arguments, std::ostream& out);
  /// As above, with the help on standard output.
  bool parse(const Arguments& arguments);

  /// What `--help` prints.
  std::string help() const;

 private:
  using Option = OptionGroup::Option;

  /// An option's value and who gave it: "--lr" or "run.conf:3: lr".
  struct Setting {
    const Option* option;
    std::string text;
    std::string origin;
  };

  /// @throws UsageError that begins with `shown` and names the closest option.
  const Option& find(const std::string& name, const std::string& shown,
                     const std::string& dashes) const;
  std::vector<Setting> read_arguments(const Arguments& arguments) const;
  std::vector<Setting> read_config_file(const std::filesystem::path& path) const;
  std::vector<Setting> read_json(const std::string& content, const std::string& place) const;
  Setting setting_from_file(const std::string& place, const std::string& name,
                            const std::string& text) const;

  std::string program_;
  std::string description_;
  std::deque<OptionGroup> groups_;
  bool help_ = false;
  std::filesystem::path config_;
};

}  // namespace linkboy::cli
