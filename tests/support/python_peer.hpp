#pragma once

#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <array>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <mutex>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace linkboy {

/// Returns the Python interpreter with torch from the environment variable LINKBOY_PYTHON. If the
/// result is empty, the test must be skipped.
inline std::string python_interpreter() {
  const char* python = std::getenv("LINKBOY_PYTHON");
  return python == nullptr ? "" : python;
}

/// A process that runs python_server.py until the tests end. It searches LINKBOY_PEER_PATH for
/// packages first. Thread-safe; answers one request at a time.
class PythonServer {
 public:
  struct Answer {
    int status = -1;
    std::string output;
  };

  static PythonServer& instance() {
    static PythonServer server;
    return server;
  }

  Answer run(const std::vector<std::string>& command) {
    const std::lock_guard lock(mutex_);
    // If the server has ended, this is an answer; SIGPIPE must not end the tests.
    const auto before = ::signal(SIGPIPE, SIG_IGN);
    std::fputs((nlohmann::json(command).dump() + "\n").c_str(), requests_);
    std::fflush(requests_);
    ::signal(SIGPIPE, before);
    std::string line;
    for (int letter = 0; (letter = std::fgetc(answers_)) != EOF && letter != '\n';) {
      line += static_cast<char>(letter);
    }
    const auto answer = nlohmann::json::parse(line, nullptr, /*allow_exceptions=*/false);
    if (answer.is_discarded()) return {-1, "python_server.py has ended"};
    return {answer.at("status"), answer.at("output")};
  }

 private:
  PythonServer() {
    std::array<int, 2> request{}, answer{};
    // Close-on-exec, so that programs that the tests start do not keep the server alive.
    if (::pipe2(request.data(), O_CLOEXEC) != 0 || ::pipe2(answer.data(), O_CLOEXEC) != 0) {
      throw std::runtime_error("python_peer.hpp: pipe2 failed");
    }
    const auto script = std::filesystem::path(__FILE__).parent_path() / "python_server.py";
    const std::string python = python_interpreter();
    const char* packages = std::getenv("LINKBOY_PEER_PATH");
    const std::string path = std::string("PYTHONPATH=") + (packages == nullptr ? "" : packages);
    if (::fork() == 0) {
      ::dup2(request[0], STDIN_FILENO);
      ::dup2(answer[1], STDOUT_FILENO);
      ::execlp("env", "env", path.c_str(), python.c_str(), "-W", "ignore", script.c_str(), nullptr);
      ::_exit(127);
    }
    ::close(request[0]);
    ::close(answer[1]);
    requests_ = ::fdopen(request[1], "w");
    answers_ = ::fdopen(answer[0], "r");
  }

  std::mutex mutex_;
  std::FILE* requests_ = nullptr;
  std::FILE* answers_ = nullptr;
};

/// Runs a script of tests/parity in the PythonServer and returns its standard output. Fails the
/// test if its exit status is not 0.
inline std::string run_python(const std::string& script,
                              const std::vector<std::string>& arguments) {
  const auto tests = std::filesystem::path(__FILE__).parent_path().parent_path();
  std::vector<std::string> command{(tests / "parity" / script).string()};
  command.insert(command.end(), arguments.begin(), arguments.end());
  auto [status, output] = PythonServer::instance().run(command);
  EXPECT_EQ(status, 0) << nlohmann::json(command).dump() << "\n" << output;
  return std::move(output);
}

/// Runs a script like `run_python` and returns its output as JSON, or {"missing": REASON} if there
/// is no Python interpreter.
inline nlohmann::json run_python_json(const std::string& script,
                                      const std::vector<std::string>& arguments) {
  if (python_interpreter().empty()) return {{"missing", "LINKBOY_PYTHON is not set"}};
  return nlohmann::json::parse(run_python(script, arguments), nullptr, /*allow_exceptions=*/false);
}

}  // namespace linkboy

/// Skips the test, or fails it if LINKBOY_NO_SKIPS=1 is set.
#define LINKBOY_SKIP(reason)                                        \
  {                                                                 \
    const char* no_skips = std::getenv("LINKBOY_NO_SKIPS");         \
    if (no_skips != nullptr && no_skips == std::string_view("1")) { \
      FAIL() << reason;                                             \
    }                                                               \
    GTEST_SKIP() << reason;                                         \
  }

/// Skips the test if there is no Python interpreter.
#define SKIP_WITHOUT_PYTHON() \
  if (::linkboy::python_interpreter().empty()) LINKBOY_SKIP("LINKBOY_PYTHON is not set")

/// Skips the test if the JSON of `run_python_json` says that a package is missing.
#define SKIP_IF_MISSING(json) \
  if ((json).contains("missing")) LINKBOY_SKIP((json).at("missing").get<std::string>())
