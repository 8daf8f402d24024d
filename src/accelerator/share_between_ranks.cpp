#include "accelerator/share_between_ranks.hpp"

#include <string>

#include "data/batch_fetcher.hpp"

namespace linkboy {

uint64_t seed_of_rank_0(const ProcessGroup& group) {
  return std::stoull(group.broadcast_bytes(std::to_string(seed_of_default_generator())));
}

std::shared_ptr<DataLoader> share_between_ranks(std::shared_ptr<DataLoader> loader,
                                                const ProcessGroup& group, bool even_batches) {
  if (group.size() == 1) return loader;
  // Tries without a seed first, because a loader that cannot be shared does not need the broadcast.
  DataLoaderOptions defaults;
  defaults.shard = {group.rank(), group.size()};
  defaults.even_batches = even_batches;
  if (loader->shared(defaults) == nullptr) return loader;
  defaults.seed = seed_of_rank_0(group);
  return loader->shared(defaults);
}

}  // namespace linkboy
