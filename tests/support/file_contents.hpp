#pragma once

#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
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

/// Returns the bytes of each file in a folder and its subfolders, by path.
inline std::map<std::string, std::string> all_bytes_in(const std::filesystem::path& folder) {
  std::map<std::string, std::string> files;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(folder)) {
    if (entry.is_regular_file()) files[entry.path().string()] = read_bytes(entry.path());
  }
  return files;
}

}  // namespace linkboy
