// Checks functions of the standard library before `main` of a program that uses linkboy. LibTorch's
// libraries export copies of some of them, built with another compiler. In a program in which
// LibTorch comes before libstdc++, remove_all crashes. The package tests include this header in the
// programs of users.
#ifndef LINKBOY_TESTS_PACKAGE_STANDARD_LIBRARY_HPP
#define LINKBOY_TESTS_PACKAGE_STANDARD_LIBRARY_HPP

#include <unistd.h>

#include <charconv>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <filesystem>
#include <fstream>
#include <regex>
#include <sstream>
#include <string>

namespace standard_library {

inline void expect(bool is_true, const char* claim) {
  if (is_true) return;
  std::fprintf(stderr, "the standard library is broken: %s\n", claim);
  std::abort();
}

inline void check_files() {
  namespace fs = std::filesystem;
  const auto folder = fs::temp_directory_path() / ("linkboy_files." + std::to_string(::getpid()));
  fs::create_directories(folder / "a" / "b");
  std::ofstream(folder / "a" / "file") << "text " << 1.5 << '\n';
  fs::copy(folder / "a", folder / "c", fs::copy_options::recursive);
  fs::create_directory_symlink("a", folder / "link");
  int num_files = 0;
  int num_entries = 0;
  for (const auto& entry : fs::recursive_directory_iterator(folder)) {
    num_files += entry.is_regular_file() ? 1 : 0;
    ++num_entries;
  }
  expect(num_files == 2 && num_entries == 7, "recursive_directory_iterator finds all files");
  expect(fs::directory_iterator(folder / "a" / "b") == fs::directory_iterator(),
         "directory_iterator finds nothing in an empty folder");
  std::string line;
  std::getline(std::ifstream(folder / "c" / "file"), line);
  expect(line == "text 1.5", "a copied file has the text");
  fs::rename(folder / "c" / "file", folder / "moved");
  fs::resize_file(folder / "moved", 4);
  expect(fs::file_size(folder / "moved") == 4, "resize_file changes the size");
  expect(fs::equivalent(fs::canonical(folder / "link"), folder / "a"), "canonical follows a link");
  expect(fs::relative(folder / "a" / "b", folder) == fs::path("a") / "b", "relative finds the way");
  expect(fs::last_write_time(folder / "moved") > fs::file_time_type::min(), "files have a time");
  expect(fs::space(folder).capacity > 0, "space finds the disk");
  std::error_code error;
  expect(!fs::remove(folder / "missing", error) && !error, "remove ignores missing files");
  expect(fs::remove_all(folder) == 8 && !fs::exists(folder), "remove_all removes the folder");
}

inline void check_text() {
  expect(std::regex_replace("a 12 b", std::regex("[0-9]+"), "<$&>") == "a <12> b", "regex_replace");
  std::smatch match;
  const std::string key = "key = value";
  expect(std::regex_match(key, match, std::regex("(\\w+) = (\\w+)")) && match[2] == "value",
         "regex_match");
  std::stringstream stream;
  stream << std::hex << 255 << ' ' << 0.25;
  std::string first;
  double second = 0;
  stream >> first >> second;
  expect(first == "ff" && second == 0.25, "streams write and read");
  char digits[32];
  const auto written = std::to_chars(digits, digits + sizeof digits, 0.1);
  expect(std::string(digits, written.ptr) == "0.1", "to_chars writes the shortest number");
  double number = 0;
  std::from_chars(digits, written.ptr, number);
  expect(number == 0.1, "from_chars reads it again");
}

inline const bool is_checked = [] {
  try {
    check_files();
    check_text();
  } catch (const std::exception& error) {
    expect(false, error.what());
  }
  return true;
}();

}  // namespace standard_library

#endif  // LINKBOY_TESTS_PACKAGE_STANDARD_LIBRARY_HPP
