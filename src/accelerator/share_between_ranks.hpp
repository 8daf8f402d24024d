#pragma once

#include <cstdint>
#include <memory>

#include "linkboy/data/data_loader.hpp"
#include "linkboy/distributed/device_mesh.hpp"

namespace linkboy {

/// Returns the seed of rank 0's CPU generator. With it, all ranks use the same permutation,
/// regardless of the states of their own generators.
/// @note Collective.
uint64_t seed_of_rank_0(const ProcessGroup& group);

/// Returns this rank's share of a loader that returns all batches on each rank. If the loader is
/// already a share, returns the loader itself. Ranks that have the same place in the dimensions
/// `data` and `shard` have the same share.
/// @param even_batches  Whether ranks without a last batch receive one, unless the loader's options
///        specify it.
/// @throws OptionError if the loader neither can be shared nor `returns_own_share`.
/// @note Collective if this function shares the loader.
std::shared_ptr<DataLoader> share_between_ranks(std::shared_ptr<DataLoader> loader,
                                                const DeviceMesh& mesh, bool even_batches);

}  // namespace linkboy
