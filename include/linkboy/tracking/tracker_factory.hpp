#pragma once

#include <memory>
#include <string>
#include <vector>

#include "linkboy/export.hpp"
#include "linkboy/tracking/tracker.hpp"
#include "linkboy/util/make.hpp"
#include "linkboy/util/text_options.hpp"

namespace linkboy {

/// The trackers that can be created by name, for command lines and config files: csv, html-report,
/// json-lines and tensorboard. A required option is empty.
LINKBOY_API const NamedFactory<std::shared_ptr<Tracker>>& tracker_factory();

/// Creates a tracker by name: `make_tracker("csv", {{"path", "run.csv"}})`. Keys are the names of
/// the members of the tracker's options and, for trackers that write one file, `path`.
/// @throws OptionError if there is no such tracker or option, if a value cannot be parsed, or if
///         the path is missing. The message lists the available names.
[[nodiscard]] inline std::shared_ptr<Tracker> make_tracker(const std::string& name,
                                                           const TextSettings& settings = {}) {
  return tracker_factory().make(name, settings);
}

/// Returns the names that `make_tracker` accepts.
inline std::vector<std::string> tracker_names() { return tracker_factory().names(); }

/// Returns the options of a tracker with their defaults; a required option is empty.
/// @throws OptionError if there is no such tracker.
inline TextSettings tracker_options(const std::string& name) {
  return tracker_factory().options(name);
}

}  // namespace linkboy
