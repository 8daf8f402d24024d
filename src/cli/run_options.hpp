#pragma once

#include <string>

#include "linkboy/cli/command_line.hpp"
#include "linkboy/cli/run.hpp"

namespace linkboy::cli::detail {

/// The key of a metric's option for the name under which its value is recorded.
inline constexpr const char* kRecordedName = "as";

/// Returns the name under which a metric is recorded by default: "f_beta" for "f-beta".
std::string recorded_name(std::string metric);

/// Adds the options of the configuration, with their help texts and aliases.
void add_options(CommandLine& command_line, RunSettings& settings);

}  // namespace linkboy::cli::detail
