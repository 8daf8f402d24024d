#pragma once

#include <cstdint>
#include <memory>

#include "linkboy/data/data_loader.hpp"
#include "linkboy/distributed/process_group.hpp"

namespace linkboy {

/// Returns the seed of rank 0's CPU generator: all ranks must walk through the same permutation,
/// whatever their own generators are. Collective.
uint64_t seed_of_rank_0(const ProcessGroup& group);

/// Returns this rank's share of a loader that gives all batches to each rank. Returns the loader
/// itself if it is a share already, or if linkboy cannot share it.
/// @param even_batches  Whether ranks without a last batch get one, unless the loader was told.
/// @note Collective, if the loader is shared here.
std::shared_ptr<DataLoader> share_between_ranks(std::shared_ptr<DataLoader> loader,
                                                const ProcessGroup& group, bool even_batches);

}  // namespace linkboy
