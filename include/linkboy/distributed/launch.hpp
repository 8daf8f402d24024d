#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "linkboy/export.hpp"
#include "linkboy/util/required.hpp"

namespace linkboy {

/// The place of this process among those that train together.
struct LaunchOptions {
  /// From 0; each process has its own. Rank 0 prints and saves.
  Required<int64_t> rank;
  /// Number of processes. At least 1.
  Required<int64_t> world_size;
  /// Name or address of the host of rank 0, as all processes reach it.
  std::string host = "127.0.0.1";
  /// Free port of that host, 1 to 65535, at which the processes find one another.
  int64_t port = 29500;
  /// Number of this process on its host, from 0; it selects the process's CUDA device. Required if
  /// the processes run on several hosts; by default, all of them run on this one.
  std::optional<int64_t> local_rank{};
  /// Number of processes on this host. Required together with `local_rank`.
  std::optional<int64_t> local_world_size{};
};

/// Tells linkboy which process this is, in place of the environment variables of torchrun, mpirun
/// or srun. Call it once, in every process, before the first Accelerator or Trainer; they connect
/// the processes.
/// @throws OptionError if an option is out of its range; Error if an Accelerator was made or
///         `launch` was called before.
LINKBOY_API void launch(const LaunchOptions& options);

}  // namespace linkboy
