#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "linkboy/export.hpp"
#include "linkboy/util/required.hpp"

namespace linkboy {

/// Identifies this process among those that train together.
struct LaunchOptions {
  /// Rank of this process, from 0; each process has a different one. Rank 0 prints and saves.
  Required<int64_t> rank;
  /// Number of processes; at least 1.
  Required<int64_t> world_size;
  /// Name or address under which all processes reach the host of rank 0.
  std::string host = "127.0.0.1";
  /// A free port of that host, 1 to 65535, where the processes find each other.
  int64_t port = 29500;
  /// Number of this process on its host, from 0; it selects the process's CUDA device. Required if
  /// the processes run on several hosts. By default all processes run on one host.
  std::optional<int64_t> local_rank{};
  /// Number of processes on this host. Required together with `local_rank`.
  std::optional<int64_t> local_world_size{};
};

/// Sets the identity of this process, instead of the environment variables of torchrun, mpirun or
/// srun. Call it once, in every process, before the first Accelerator or Trainer, which connects
/// the processes.
/// @throws OptionError if an option is out of range; Error if an Accelerator was made or `launch`
///         was called before.
LINKBOY_API void launch(const LaunchOptions& options);

}  // namespace linkboy
