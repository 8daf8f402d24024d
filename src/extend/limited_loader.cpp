// Ends each epoch of another loader after a number of batches, and can repeat the first epoch.

#include "linkboy/extend/limited_loader.hpp"

#include <algorithm>
#include <utility>

#include "data/checked_iterator.hpp"
#include "linkboy/error.hpp"

namespace linkboy {
namespace {

class LimitedIterator final : public BatchIterator {
 public:
  LimitedIterator(std::unique_ptr<BatchIterator> batches, int64_t num_left)
      : batches_(std::move(batches)), num_left_(num_left) {}

  std::optional<Batch> next() override {
    if (num_left_ <= 0) return std::nullopt;
    --num_left_;
    return batches_->next();
  }

 private:
  std::unique_ptr<BatchIterator> batches_;
  int64_t num_left_;
};

}  // namespace

LimitedLoader::LimitedLoader(std::shared_ptr<DataLoader> loader, int64_t max_batches,
                             bool repeats_first_epoch)
    : loader_(std::move(loader)),
      max_batches_(max_batches),
      repeats_first_epoch_(repeats_first_epoch) {
  LINKBOY_CHECK(loader_ != nullptr, "the loader to limit is null; pass a loader.");
  LINKBOY_CHECK(max_batches_ >= 0, "max_batches is ", max_batches_, "; it must not be negative.");
}

std::shared_ptr<DataLoader> LimitedLoader::shared(const DataLoaderOptions& defaults) const {
  auto part = loader_->shared(defaults);
  if (!part) return nullptr;
  return std::make_shared<LimitedLoader>(std::move(part), max_batches_, repeats_first_epoch_);
}

int64_t LimitedLoader::size() const { return std::min(loader_->size(), max_batches_); }

std::unique_ptr<BatchIterator> LimitedLoader::iterate(int64_t epoch, int64_t first_batch) {
  const int64_t num_left = size() - first_batch;
  if (repeats_first_epoch_) epoch = 1;
  auto batches = num_left > 0 ? checked(loader_->iterate(epoch, first_batch)) : nullptr;
  return std::make_unique<LimitedIterator>(std::move(batches), num_left);
}

std::unique_ptr<BatchIterator> LimitedLoader::peek(int64_t epoch, int64_t max_batches) {
  const int64_t num_batches = std::min(size(), max_batches);
  if (repeats_first_epoch_) epoch = 1;
  auto batches = num_batches > 0 ? checked(loader_->peek(epoch, num_batches)) : nullptr;
  return std::make_unique<LimitedIterator>(std::move(batches), num_batches);
}

}  // namespace linkboy
