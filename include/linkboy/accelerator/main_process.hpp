#pragma once

#include <functional>
#include <string>

#include "linkboy/export.hpp"

namespace linkboy {

class Accelerator;

/// Calls `work` on every process. Returns the message of the exception that it threw on the main
/// process, the same on all processes, or an empty string. For work in which the main process alone
/// may fail, like writing a file: an exception there would leave the others waiting for it.
/// StopTraining, and exceptions on other processes, propagate.
/// @note Collective.
LINKBOY_API std::string failure_on_main_process(const Accelerator& accelerator,
                                                const std::function<void()>& work);

/// Calls `work` on the main process only.
/// @throws On the main process what it threw; on the others an Error of the same class
/// (OptionError,
///         FileError, ...) with the same message.
/// @note Collective.
LINKBOY_API void run_on_main_process(const Accelerator& accelerator,
                                     const std::function<void()>& work);

}  // namespace linkboy
