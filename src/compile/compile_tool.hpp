#pragma once

#include <c10/util/FunctionRef.h>

#include <chrono>
#include <filesystem>
#include <string>
#include <vector>

namespace linkboy {

/// How often a process is asked whether it has ended.
inline constexpr auto kPollInterval = std::chrono::milliseconds(50);

/// Loads the libraries of LibTorch that a package needs by their names. The program need not be
/// linked to all of them, and only it knows their folder.
void load_libraries_of_torch();

/// The text of compile.py.
const std::string& compile_script();

/// @throws CompileError if the file cannot be written.
void write_text(const std::filesystem::path& path, const std::string& text);

/// The CPUs on which code that is compiled now runs: those with the vector instructions that
/// LibTorch uses in this process ("x86-64-v3"), or for other architectures, those like this one.
std::string cpu_level();

/// That level and the lower ones, whose code also runs here.
std::vector<std::string> usable_cpu_levels();

/// Runs compile.py on program.json in `folder`, which receives the result.
/// @param wait  Called from time to time until the script ends. If it throws, the script is killed.
/// @throws CompileError with the reason and what to do.
void run_compile_script(const std::filesystem::path& folder, c10::function_ref<void()> wait);

}  // namespace linkboy
