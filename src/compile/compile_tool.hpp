#pragma once

#include <c10/util/FunctionRef.h>

#include <filesystem>
#include <string>

namespace linkboy {

/// The folder of LibTorch's libraries in this process; empty if the system does not tell.
std::filesystem::path libraries_of_torch();

/// The text of compile.py.
const std::string& compile_script();

/// Runs compile.py on program.json in `folder`, which receives the library.
/// @param wait  Called again and again until the script ends.
/// @throws CompileError with the reason and what to do.
void run_compile_script(const std::filesystem::path& folder, c10::function_ref<void()> wait);

}  // namespace linkboy
