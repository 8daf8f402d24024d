#pragma once

#include <optional>
#include <string>

#include "linkboy/cli/command_line.hpp"
#include "linkboy/cli/run.hpp"
#include "linkboy/error.hpp"
#include "linkboy/run/optimizers.hpp"

namespace linkboy::cli::detail {

/// The key of a metric's option for the name under which its value is recorded.
inline constexpr const char* kRecordedName = "as";

/// The end of a program's description.
inline constexpr const char* kSeeOptions = "\ndocs/options.md of linkboy describes the options.";

/// Returns the name under which a metric is recorded by default: "f_beta" for "f-beta".
std::string recorded_name(std::string metric);

/// Adds the options of the configuration, with their aliases.
void add_options(CommandLine& command_line, RunSettings& settings);

/// Calls `make` and converts its errors to usage errors for the option.
template <class Make>
auto as_usage(const std::string& option, const Make& make) {
  try {
    return make();
  } catch (const Error& error) {
    throw UsageError("--" + option + ": " + error.what());
  } catch (const c10::Error& error) {
    throw UsageError("--" + option + ": " + error.what_without_backtrace());
  }
}

/// Returns the function that creates the optimizer. The function throws UsageError.
/// @throws UsageError if an option is out of range.
CreateOptimizerFn optimizer_fn(const NamedSettings& optimizer);

/// Returns the function that creates the schedule; empty without one. The function throws
/// UsageError.
/// @throws UsageError if an option is invalid.
CreateSchedulerFn scheduler_fn(const std::optional<NamedSettings>& scheduler);

}  // namespace linkboy::cli::detail
