#pragma once

#include <gtest/gtest.h>

#include <array>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <string>
#include <vector>

namespace linkboy {

/// The Python that LINKBOY_PYTHON names, which has torch; empty without one: then skip the test.
inline std::string python_interpreter() {
  const char* python = std::getenv("LINKBOY_PYTHON");
  return python == nullptr ? "" : python;
}

/// Runs `script` in that Python and returns what it writes to its standard output. Fails the test
/// if it does not end with 0. What LINKBOY_PEER_PATH names is looked through for packages first.
inline std::string run_python(const std::filesystem::path& script,
                              const std::vector<std::string>& arguments) {
  const auto quoted = [](const std::string& word) {
    std::string result = "'";
    for (const char letter : word) result += letter == '\'' ? "'\\''" : std::string(1, letter);
    return result + "'";
  };
  const char* packages = std::getenv("LINKBOY_PEER_PATH");
  std::string command = packages == nullptr ? "" : "PYTHONPATH=" + quoted(packages) + " ";
  command += quoted(python_interpreter()) + " -W ignore " + quoted(script.string());
  for (const auto& argument : arguments) command += " " + quoted(argument);

  std::FILE* pipe = ::popen(command.c_str(), "r");
  if (pipe == nullptr) {
    ADD_FAILURE() << "cannot start: " << command;
    return "";
  }
  std::string output;
  std::array<char, 4096> buffer;
  while (const std::size_t size = std::fread(buffer.data(), 1, buffer.size(), pipe)) {
    output.append(buffer.data(), size);
  }
  EXPECT_EQ(::pclose(pipe), 0) << command << "\n" << output;
  return output;
}

}  // namespace linkboy
