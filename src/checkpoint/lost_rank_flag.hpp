#pragma once

#include <atomic>
#include <filesystem>

#include "linkboy/error.hpp"

namespace linkboy {

/// Whether the results of devices are invalid because a collective was aborted. Reset when the
/// ranks form a new process group.
inline std::atomic<bool> are_device_results_void{false};

/// Call it before a checkpoint at `path` gets its name.
/// @throws Error if the results of devices are invalid.
inline void require_device_results(const std::filesystem::path& path) {
  LINKBOY_CHECK(!are_device_results_void, path,
                " is not written: a rank is lost, and the device's results since then are invalid. "
                "Resume from the last training state.");
}

}  // namespace linkboy
