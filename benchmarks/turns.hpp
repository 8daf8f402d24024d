#pragma once

#include <torch/version.h>
#include <unistd.h>

#include <charconv>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <exception>
#include <fstream>
#include <functional>
#include <iostream>
#include <string>

#include "linkboy/error.hpp"

// The code that the C++ sides of compare_peers.py share. See workloads.cpp for the protocol.
namespace linkboy::benchmarks {

/// Returns the peak resident memory of this process in bytes.
inline int64_t peak_bytes() {
  std::ifstream status("/proc/self/status");
  std::string line;
  while (std::getline(status, line)) {
    if (line.rfind("VmHWM:", 0) == 0) return std::stoll(line.substr(line.find(':') + 1)) * 1024;
  }
  return 0;
}

/// Answers a driver on standard output. Redirects all other output to /dev/null.
class Turns {
 public:
  Turns() : replies_(fdopen(dup(STDOUT_FILENO), "w")) {
    LINKBOY_CHECK(replies_ && std::freopen("/dev/null", "w", stdout), "cannot redirect the output");
    LINKBOY_CHECK(std::freopen("/dev/null", "w", stderr), "cannot redirect the errors");
  }

  template <class... Values>
  void reply(const char* format, Values... values) const {
    std::fprintf(replies_, format, values...);
    std::fflush(replies_);
  }

  void reply_error(const std::exception& error) const {
    // Removes quotes and backslashes, which would end or change the JSON string.
    std::string message = error.what();
    message = message.substr(0, message.find('\n'));
    std::erase_if(message, [](char c) { return c == '"' || c == '\\'; });
    reply("{\"error\": \"%s\"}\n", message.c_str());
  }

  /// Calls `run`, which takes `num_steps` steps, for each line "run", and answers with its time and
  /// the check value. Returns after any other line.
  void serve(int64_t num_steps, const std::function<void()>& run,
             const std::function<double()>& check) const {
    reply("{\"compiler\": \"%s\", \"torch\": \"%s\"}\n", __VERSION__, TORCH_VERSION);
    for (std::string line; std::getline(std::cin, line) && line == "run";) {
      const auto start = std::chrono::steady_clock::now();
      run();
      const std::chrono::duration<double> time = std::chrono::steady_clock::now() - start;
      reply("{\"seconds\": %.6f, \"steps\": %lld, \"loss\": %.9g, \"peak_bytes\": %lld}\n",
            time.count(), static_cast<long long>(num_steps), check(),
            static_cast<long long>(peak_bytes()));
    }
  }

 private:
  std::FILE* replies_;
};

inline bool parse_number(const char* text, int64_t& value) {
  const char* end = text + std::strlen(text);
  const auto [stop, error] = std::from_chars(text, end, value);
  return error == std::errc() && stop == end && value >= 1;
}

}  // namespace linkboy::benchmarks
