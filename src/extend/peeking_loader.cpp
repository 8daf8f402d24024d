// Replaces `iterate` with `peek`, so that the training does not miss the batches.

#include "linkboy/extend/peeking_loader.hpp"

#include <utility>

#include "linkboy/error.hpp"

namespace linkboy {

PeekingLoader::PeekingLoader(std::shared_ptr<DataLoader> loader) : loader_(std::move(loader)) {
  LINKBOY_CHECK(loader_ != nullptr, "the loader to peek into is null; pass a loader.");
}

std::unique_ptr<BatchIterator> PeekingLoader::iterate(int64_t epoch, int64_t first_batch) {
  LINKBOY_CHECK(first_batch == 0, "batch ", first_batch,
                " was requested; a PeekingLoader begins at batch 0.");
  return loader_->peek(epoch, size());
}

std::shared_ptr<DataLoader> PeekingLoader::shared(const DataLoaderOptions& defaults) const {
  auto part = loader_->shared(defaults);
  return part ? std::make_shared<PeekingLoader>(std::move(part)) : nullptr;
}

}  // namespace linkboy
