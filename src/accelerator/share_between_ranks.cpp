// Divides a loader between the ranks, which then shuffle with the same seed.

#include "accelerator/share_between_ranks.hpp"

#include <c10/util/Type.h>

#include <string>
#include <typeinfo>

#include "data/batch_fetcher.hpp"
#include "linkboy/error.hpp"

namespace linkboy {

uint64_t seed_of_rank_0(const ProcessGroup& group) {
  return std::stoull(group.broadcast_bytes(std::to_string(seed_of_default_generator())));
}

std::shared_ptr<DataLoader> share_between_ranks(std::shared_ptr<DataLoader> loader,
                                                const DeviceMesh& mesh, bool even_batches) {
  const ProcessGroup& world = *mesh.world();
  if (world.size() == 1) return loader;
  const ProcessGroup& group = *mesh.group({MeshDim::data, MeshDim::shard});
  // Tries without a seed first, because a loader that cannot be shared does not need the broadcast.
  DataLoaderOptions defaults;
  defaults.shard = {group.rank(), group.size()};
  defaults.even_batches = even_batches;
  if (loader->shared(defaults) == nullptr) {
    const DataLoader& own = *loader;
    LINKBOY_CHECK_OPTION(
        own.returns_own_share(), "the loader ", c10::demangle(typeid(own).name()),
        " does not say how ", group.size(),
        " processes share it, and each would use all of its "
        "batches. If it returns only the batches of its own process, add this line to its class:\n"
        "  bool returns_own_share() const override { return true; }\n"
        "If it returns all batches on every process, override this method instead, and return a "
        "loader of the batches of defaults.shard:\n"
        "  std::shared_ptr<DataLoader> shared(const DataLoaderOptions& defaults) const override;");
    return loader;
  }
  defaults.seed = seed_of_rank_0(world);
  return loader->shared(defaults);
}

}  // namespace linkboy
