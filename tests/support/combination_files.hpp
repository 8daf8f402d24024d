// Compares the files that two runs leave.

#pragma once

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include "support/state_difference.hpp"

namespace linkboy::testing {

/// Returns the sorted lines of a tracker's file, without measurements and without the lines that
/// each process adds. An interruption can change the order of the lines of an update.
inline std::vector<std::string> tracked_lines(const std::filesystem::path& path) {
  std::vector<std::string> lines;
  // A run that resumes at its end evaluates the average again.
  const auto is_ignored = [](const std::string& name) {
    return is_measurement(name) || name.find("swa_model_") != std::string::npos;
  };
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) {
    if (path.extension() == ".csv") {
      const auto place = line.substr(line.find(',') + 1);  // after the time
      const auto end_of_name = place.rfind(',');
      if (!is_ignored(place.substr(0, end_of_name))) lines.push_back(place);
      continue;
    }
    auto record = nlohmann::json::parse(line);
    if (record.at("type") == "run") continue;
    record.erase("time");
    for (const char* values : {"values", "last"}) {
      if (!record.contains(values)) continue;
      auto& scalars = record[values];
      for (auto entry = scalars.begin(); entry != scalars.end();) {
        entry = is_ignored(entry.key()) ? scalars.erase(entry) : std::next(entry);
      }
      if (scalars.empty() && record["type"] == "scalars") record.clear();
    }
    if (!record.empty()) lines.push_back(record.dump());
  }
  std::sort(lines.begin(), lines.end());
  return lines;
}

/// Returns how the files of two runs differ, apart from their training states.
inline std::string file_difference(const std::filesystem::path& left,
                                   const std::filesystem::path& right) {
  const auto names_in = [](const std::filesystem::path& folder) {
    std::set<std::string> names;
    for (const auto& entry : std::filesystem::recursive_directory_iterator(folder)) {
      const auto name = entry.path().lexically_relative(folder);
      const bool is_state = *name.begin() == "states" || *name.begin() == "end";
      if (entry.is_regular_file() && !is_state) names.insert(name.string());
    }
    return names;
  };
  const auto names = names_in(left);
  if (const auto others = names_in(right); names != others) {
    return c10::str("files ", c10::Join(" ", names), "; and ", c10::Join(" ", others), "; ");
  }
  std::string text;
  for (const std::string& name : names) {
    if (name.ends_with(".pt")) {
      add_differences(text, name, read_checkpoint(left / name).to_ivalue(),
                      read_checkpoint(right / name).to_ivalue());
      continue;
    }
    const auto lines = tracked_lines(left / name);
    const auto others = tracked_lines(right / name);
    const auto [line, other] =
        std::mismatch(lines.begin(), lines.end(), others.begin(), others.end());
    if (line == lines.end() && other == others.end()) continue;
    text += c10::str(name, " line ", line - lines.begin() + 1, ": ",
                     line == lines.end() ? "the end" : *line, " and ",
                     other == others.end() ? "the end" : *other, "; ");
  }
  return text;
}

}  // namespace linkboy::testing
