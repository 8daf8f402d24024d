#pragma once

#include <memory>
#include <string>
#include <vector>

#include "linkboy/export.hpp"
#include "linkboy/tracking/tracker.hpp"
#include "linkboy/util/text_options.hpp"

namespace linkboy {

/// Makes a tracker by its name, for command lines and config files: `make_tracker("csv", {{"path",
/// "run.csv"}})`. Keys are the names of the members of its options, and `path` of those that write
/// one file.
/// @throws OptionError if there is no such tracker or option, a value cannot be read, or the path
///         is missing; the message lists what there is.
LINKBOY_API std::shared_ptr<Tracker> make_tracker(const std::string& name,
                                                  const TextSettings& settings = {});

/// csv, html-report, json-lines, mlflow, tensorboard.
LINKBOY_API std::vector<std::string> tracker_names();

/// The options that the tracker takes, with their defaults; a required one is empty.
/// @throws OptionError if there is no such tracker.
LINKBOY_API TextSettings tracker_options(const std::string& name);

}  // namespace linkboy
