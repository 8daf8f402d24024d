#pragma once

#include <c10/util/FunctionRef.h>

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <string>
#include <utility>
#include <vector>

namespace linkboy {

/// Loads the libraries of LibTorch that a package needs by their names. The program need not be
/// linked to all of them, and only it knows their folder.
void load_libraries_of_torch();

/// The text of compile.py.
const std::string& compile_script();

/// @throws std::filesystem::filesystem_error if the file cannot be written.
void write_text(const std::filesystem::path& path, const std::string& text);

/// The CPUs on which code that is compiled now runs: those with the vector instructions that
/// LibTorch uses in this process ("x86-64-v3"), or for other architectures, those like this one.
std::string cpu_level();

/// That level and the lower ones, whose code also runs here.
std::vector<std::string> usable_cpu_levels();

/// Receives a line of progress from time to time, and more often an empty line. What it throws ends
/// the work.
using TellFn = c10::function_ref<void(const std::string&)>;

/// Tells how long work has taken so far.
class Progress {
 public:
  Progress(std::string what, TellFn tell) : what_(std::move(what)), tell_(tell) {}

  /// Waits for a moment. Calls `tell`, with a line about every ten seconds.
  void wait();

 private:
  std::string what_;
  TellFn tell_;
  std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
  int64_t num_told_ = 0;
};

/// Runs compile.py on program.json in `folder`, which receives the result. If this process is
/// killed, the script removes the folder.
/// @throws CompileError with the reason and what to do, filesystem_error, and what `progress`
///         throws; the script is then killed.
void run_compile_script(const std::filesystem::path& folder, Progress progress);

}  // namespace linkboy
