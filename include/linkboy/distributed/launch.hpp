#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "linkboy/export.hpp"
#include "linkboy/util/required.hpp"

namespace linkboy {

/// Identifies this process among those that train together.
struct LaunchOptions {
  /// Rank of this process, from 0 to `world_size` - 1; each process has a different rank. Rank 0
  /// prints and saves.
  Required<int64_t> rank;
  /// Number of processes, 1 to 131072.
  Required<int64_t> world_size;
  /// Name or address at which all processes can reach the host of rank 0. Must not be empty.
  std::string host = "127.0.0.1";
  /// A free port on that host, 1 to 65535, through which the processes find each other.
  int64_t port = 29500;
  /// Number of this process on its host, from 0; it selects the process's CUDA device. Required
  /// unless `host` is a loopback address or `world_size` is 1; it then defaults to `rank`.
  std::optional<int64_t> local_rank{};
  /// Number of processes on this host. Set both `local_rank` and this, or neither. Defaults to
  /// `world_size`.
  std::optional<int64_t> local_world_size{};
};

/// Sets the identity of this process, instead of the environment variables of torchrun, mpirun or
/// srun. Call it once in every process, before you create the first Accelerator or Trainer, which
/// connects the processes.
/// @throws OptionError if an option is missing or out of range; Error if an Accelerator was created
///         or `launch` was called before.
LINKBOY_API void launch(const LaunchOptions& options);

}  // namespace linkboy
