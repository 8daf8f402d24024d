#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>

namespace linkboy {

/// How this process was launched, and its place among those launched with it.
struct LaunchEnvironment {
  enum class Launcher {
    none,
    torchrun,  // or RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT set by hand, or `launch`
    open_mpi,  // mpirun
    slurm,     // srun
  };

  Launcher launcher = Launcher::none;
  int64_t rank = 0;
  int64_t world_size = 1;
  int64_t local_rank = 0;        // among the processes on this host
  int64_t local_world_size = 1;  // processes on this host

  /// Where rank 0's store listens; nothing without a launcher.
  std::string master_address;
  uint16_t master_port = 0;

  /// torchrun's agent keeps the store at that address: rank 0 must not start another.
  bool uses_agent_store = false;
  /// How often torchrun has started its processes again. Keys of the agent's store must contain it:
  /// the store outlives a restart.
  int64_t restart_count = 0;

  /// Whether this process is shown a single CUDA device (CUDA_VISIBLE_DEVICES names one).
  bool sees_one_device = false;

  /// Tells this launch from others, alike on all ranks; may be empty. For messages and keys.
  std::string job_id;

  /// Whether the processes are to be made a group: also one process alone if torchrun or mpirun
  /// launched it. Not so with Slurm, where programs in the shell of `srun --pty bash` look like
  /// tasks of `srun -n 1`, and two at the same time would want one port.
  bool is_distributed() const {
    return world_size > 1 || launcher == Launcher::torchrun || launcher == Launcher::open_mpi;
  }
};

/// The value of a variable, nothing if it is not set.
using EnvironmentLookup = std::function<std::optional<std::string>(const char* name)>;

/// Looks for torchrun's variables first (torchrun may run inside of the others), then for mpirun's,
/// then for srun's. A variable with an empty value counts as not set.
///
/// @throws Error if a variable is malformed, contradicts another or is missing.
LaunchEnvironment read_launch_environment(const EnvironmentLookup& lookup);

/// From the environment of this process, or what `launch` was told.
LaunchEnvironment read_launch_environment();

/// Returns the index of this process's device among the `num_devices` that it sees: its number on
/// the host, or 0 where the launcher shows it one device only. Nothing if there are too few
/// devices.
std::optional<int64_t> device_index_of(const LaunchEnvironment& launch, int64_t num_devices);

/// The first host of a list as Slurm writes it: "n008-ib" of "n[008-011]-ib,login1".
/// @throws Error if that host is malformed; what comes after it is not read.
std::string first_host(std::string_view slurm_node_list);

}  // namespace linkboy
