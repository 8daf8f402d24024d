#pragma once

#include <functional>
#include <string>

#include "linkboy/export.hpp"

namespace linkboy {

class Accelerator;

/// Calls `work` on every process, and catches an exception on the main process. Use it for work in
/// which only the main process may fail, such as writing a file: its exception would leave the
/// other processes waiting. StopTraining, and exceptions on other processes, propagate.
/// @return The message of the exception that `work` threw on the main process, or an empty string;
///         the same on all processes.
/// @note Collective.
[[nodiscard]] LINKBOY_API std::string failure_on_main_process(const Accelerator& accelerator,
                                                              const std::function<void()>& work);

/// Calls `work` on the main process only.
/// @throws On the main process, the exception from `work`; on the others, an Error of the same
///         class (OptionError, FileError, ...) with the same message.
/// @note Collective.
LINKBOY_API void run_on_main_process(const Accelerator& accelerator,
                                     const std::function<void()>& work);

}  // namespace linkboy
