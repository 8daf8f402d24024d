#pragma once

#include <memory>
#include <string>
#include <vector>

#include "linkboy/export.hpp"
#include "linkboy/tracking/tracker.hpp"
#include "linkboy/util/text_options.hpp"

namespace linkboy {

/// Creates a tracker by name, for command lines and config files:
/// `make_tracker("csv", {{"path", "run.csv"}})`. Keys are the names of the members of the tracker's
/// options and, for trackers that write one file, `path`.
/// @throws OptionError if there is no such tracker or option, if a value cannot be parsed, or if
///         the path is missing. The message lists the available names.
[[nodiscard]] LINKBOY_API std::shared_ptr<Tracker> make_tracker(const std::string& name,
                                                                const TextSettings& settings = {});

/// Returns the names of the trackers: csv, html-report, json-lines and tensorboard.
LINKBOY_API std::vector<std::string> tracker_names();

/// Returns the options of a tracker with their defaults; a required option is empty.
/// @throws OptionError if there is no such tracker.
LINKBOY_API TextSettings tracker_options(const std::string& name);

}  // namespace linkboy
