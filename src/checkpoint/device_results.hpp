#pragma once

#include <atomic>
#include <filesystem>

#include "linkboy/error.hpp"

namespace linkboy {

/// Whether what devices compute means nothing, because a collective was called off. Until the ranks
/// meet again.
inline std::atomic<bool> are_device_results_void{false};

/// Before a checkpoint at `path` gets its name.
/// @throws Error if the results are void.
inline void require_device_results(const std::filesystem::path& path) {
  LINKBOY_CHECK(
      !are_device_results_void, path,
      " is not written: a rank is lost, and what the device has computed since then means "
      "nothing. Start again from the last training state.");
}

}  // namespace linkboy
