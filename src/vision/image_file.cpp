// Reads image files, and lists those below a folder in torchvision's order.

#include "vision/image_file.hpp"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <map>
#include <set>
#include <string>
#include <system_error>

#include "linkboy/error.hpp"

namespace linkboy::vision {
namespace {

namespace fs = std::filesystem;

bool has_image_suffix(const std::string& name) {
  std::string suffix = name.substr(std::min(name.rfind('.'), name.size()));
  for (char& letter : suffix) {
    if (letter >= 'A' && letter <= 'Z') letter += 'a' - 'A';
  }
  return suffix == ".jpg" || suffix == ".jpeg" || suffix == ".png";
}

/// Adds the names of the images in `folder` and all folders below it to `names`, by the path of
/// their folder.
/// @param above  The real paths of the folders above.
void walk(const fs::path& folder, std::set<fs::path>& above,
          std::map<std::string, std::set<std::string>>& names) {
  std::error_code error;
  const fs::path real = fs::canonical(folder, error);
  LINKBOY_CHECK_AS(FileError, error || above.insert(real).second, "the folder ", folder,
                   " is a link to a folder above it. Remove the link.");
  fs::directory_iterator entries(folder, error);
  LINKBOY_CHECK_AS(FileError, !error, "the folder ", folder, " cannot be read: ", error.message(),
                   ". Make it readable, or remove it.");
  for (const fs::directory_entry& entry : entries) {
    if (entry.is_directory(error)) {
      walk(entry.path(), above, names);
    } else if (std::string name = entry.path().filename().string(); has_image_suffix(name)) {
      names[folder.string()].insert(std::move(name));
    }
  }
  above.erase(real);
}

}  // namespace

std::vector<uint8_t> read_file(const fs::path& path) {
  std::error_code error;
  LINKBOY_CHECK_AS(FileError, fs::exists(path, error), path, " is missing. Restore the file.");
  LINKBOY_CHECK_AS(FileError, fs::is_regular_file(path, error), path,
                   " is not a file. Remove it, or replace it with a file.");
  const std::uintmax_t size = fs::file_size(path, error);
  std::ifstream file(path, std::ios::binary);
  std::vector<uint8_t> bytes(error ? 0 : size);
  file.read(reinterpret_cast<char*>(bytes.data()), std::ssize(bytes));
  LINKBOY_CHECK_AS(FileError, !error && file.good(), path,
                   " cannot be read: ", error ? error.message() : std::strerror(errno),
                   ". Make it readable, or remove it.");
  return bytes;
}

std::vector<fs::path> list_images(const fs::path& folder) {
  std::set<fs::path> above;
  std::map<std::string, std::set<std::string>> names;
  walk(folder, above, names);
  std::vector<fs::path> images;
  for (const auto& [parent, files] : names) {
    for (const std::string& file : files) images.push_back(fs::path(parent) / file);
  }
  return images;
}

}  // namespace linkboy::vision
