#pragma once

#include <cstdint>
#include <memory>

#include "linkboy/data/data_loader.hpp"
#include "linkboy/distributed/process_group.hpp"

namespace linkboy {

/// Returns the seed of rank 0's CPU generator. All ranks must use the same permutation, whatever
/// the state of their own generators is.
/// @note Collective.
uint64_t seed_of_rank_0(const ProcessGroup& group);

/// Returns this rank's share of a loader that returns all batches on each rank. If the loader is
/// already a share, or if linkboy cannot share it, returns the loader itself.
/// @param even_batches  Whether ranks without a last batch get one, unless the loader's own options
///        decide this.
/// @note Collective, if the loader is shared here.
std::shared_ptr<DataLoader> share_between_ranks(std::shared_ptr<DataLoader> loader,
                                                const ProcessGroup& group, bool even_batches);

}  // namespace linkboy
