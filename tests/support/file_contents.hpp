#pragma once

#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <sstream>
#include <string>

namespace linkboy {

inline std::string read_bytes(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  return std::string(std::istreambuf_iterator<char>(file), {});
}

inline void write_bytes(const std::filesystem::path& path, const std::string& bytes) {
  std::ofstream(path, std::ios::binary) << bytes;
}

/// Returns the text of a page in `docs/`.
inline std::string documentation_page(const std::string& name) {
  return read_bytes(std::filesystem::path(__FILE__).parent_path() / "../../docs" / name);
}

/// Returns the rows of an entry in a section of `docs/options.md`, which scripts/maintain/options
/// writes. `name` is the entry's name in text.
inline std::string option_rows(const std::string& section, const std::string& name) {
  std::istringstream lines(documentation_page("options.md"));
  std::string rows;
  bool is_in_section = false;
  bool is_in_entry = false;
  for (std::string line; std::getline(lines, line);) {
    if (line.starts_with("## ")) is_in_section = line == "## " + section;
    if (!is_in_section) continue;
    if (!line.starts_with("| |")) {
      const std::string first = line.substr(0, line.find(" |", 1));
      is_in_entry = first == "| `" + name + "`" || first.ends_with(", `" + name + "`");
    }
    if (is_in_entry) rows += line + "\n";
  }
  return rows;
}

/// Returns the bytes of each file in a folder and its subfolders, by path.
inline std::map<std::string, std::string> all_bytes_in(const std::filesystem::path& folder) {
  std::map<std::string, std::string> files;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(folder)) {
    if (entry.is_regular_file()) files[entry.path().string()] = read_bytes(entry.path());
  }
  return files;
}

}  // namespace linkboy
