#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>

namespace linkboy {

/// The way in which a launcher passes texts between its processes.
enum class LauncherExchange {
  none,
  pmix,  // the library libpmix.so.2, which is loaded when it is needed
  pmi    // version 1 of the protocol of MPICH's Hydra, over the descriptor PMI_FD
};

/// Whether this process can use `exchange`: for PMIx, whether the library can be loaded and has
/// connected to the launcher. The connection stays open until the process ends.
bool is_available(LauncherExchange exchange);

/// Passes a text of rank 0 to the other ranks. All ranks must call it.
/// @param text  The text on rank 0, without blanks; ignored on the other ranks.
/// @return The text of rank 0.
/// @throws DistributedError if the launcher does not answer in time or refuses.
std::string pass_from_rank_0(LauncherExchange exchange, int64_t rank, const std::string& text,
                             std::chrono::milliseconds timeout);

/// What PMIx knows about this process.
struct PmixJob {
  int64_t rank = 0;
  int64_t world_size = 1;
  int64_t local_rank = 0;
  int64_t local_world_size = 1;
};

/// Asks the launcher, which has set PMIX_RANK, about this process. Returns nullopt if the library
/// cannot be loaded.
/// @throws DistributedError if the launcher does not answer.
std::optional<PmixJob> pmix_job();

}  // namespace linkboy
