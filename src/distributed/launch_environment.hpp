#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "distributed/launcher_exchange.hpp"

namespace linkboy {

/// How this process was launched, and its position among the processes of the launch.
struct LaunchEnvironment {
  enum class Launcher {
    none,
    torchrun,  // also variables set by hand, `launch` and Kubernetes' PyTorchJob
    open_mpi,
    mpich,  // and other programs with Hydra, such as Intel MPI
    slurm,  // srun
    jsm,    // jsrun of LSF
    flux,
    pals,  // mpiexec of HPE Cray
    mvapich,
    pmix,  // any other with PMIx, such as PRRTE
  };

  Launcher launcher = Launcher::none;
  int64_t rank = 0;
  int64_t world_size = 1;
  int64_t local_rank = 0;        // among the processes on this host
  int64_t local_world_size = 1;  // processes on this host

  /// How rank 0 tells the others the address and port of its store. If the exchange is not
  /// available, they are `master_address` and `master_port`.
  LauncherExchange exchange = LauncherExchange::none;
  /// The port at which rank 0 then listens, of MASTER_PORT; 0 for any free one.
  uint16_t port_with_exchange = 0;
  /// The address at which rank 0's store listens; empty without a launcher, or if it is not known.
  std::string master_address;
  uint16_t master_port = 0;

  /// Whether torchrun's agent hosts the store at that address, so that rank 0 must not start
  /// another.
  bool uses_agent_store = false;

  /// Whether CUDA_VISIBLE_DEVICES shows a single CUDA device to this process.
  bool sees_one_device = false;

  /// Identifies this launch, for messages and keys; the same on all ranks. May be empty.
  std::string job_id;

  /// What the user should know before the training; empty if there is nothing.
  std::string warning{};

  /// Whether the processes form a group. Also true for a single process that torchrun or mpirun
  /// launched. False for a single Slurm task, because programs in the shell of `srun --pty bash`
  /// look like tasks of `srun -n 1`, and two of them at the same time would use the same port.
  bool is_distributed() const {
    return world_size > 1 || launcher == Launcher::torchrun || launcher == Launcher::open_mpi;
  }
};

/// Returns the value of a variable, or nullopt if it is not set.
using EnvironmentLookup = std::function<std::optional<std::string>(const char* name)>;

/// Reads the variables of torchrun first (torchrun may run inside the others), then those of mpirun
/// (which may have started its processes with srun), then those of srun and others. A variable with
/// an empty value counts as not set.
/// @param names  The names of all variables, among which those of an unknown launcher are found.
/// @throws Error if a variable is malformed, contradicts another one or is missing, or if an
///         unknown launcher has started several processes.
LaunchEnvironment read_launch_environment(const EnvironmentLookup& lookup,
                                          const std::vector<std::string>& names = {});

/// Returns the values that were passed to `launch`. If it was not called, reads the environment of
/// this process.
LaunchEnvironment read_launch_environment();

/// Returns the index of this process's device among the `num_devices` visible ones: its number on
/// the host, or 0 if the launcher shows only one device to it. Returns nullopt if there are too few
/// devices.
std::optional<int64_t> device_index_of(const LaunchEnvironment& launch, int64_t num_devices);

/// Returns the first host of a Slurm node list: "n008-ib" for "n[008-011]-ib,login1".
/// @throws Error if that host is malformed; the rest of the list is not read.
std::string first_host(std::string_view slurm_node_list);

}  // namespace linkboy
