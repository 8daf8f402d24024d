#pragma once

#include <cstdint>
#include <memory>

#include "linkboy/data/data_loader.hpp"
#include "linkboy/export.hpp"

namespace linkboy {

/// A loader of the batches of a training loader for another purpose, such as an evaluation of the
/// training data. It takes no batches from the training: `iterate` calls `DataLoader::peek`. If the
/// training loader reads a single stream, each epoch has the batches that the training uses next.
class LINKBOY_API PeekingLoader final : public DataLoader {
 public:
  /// @throws Error if `loader` is null.
  explicit PeekingLoader(std::shared_ptr<DataLoader> loader);

  int64_t size() const override { return loader_->size(); }
  int64_t batch_size() const override { return loader_->batch_size(); }
  /// @throws Error if `first_batch` is not 0.
  std::unique_ptr<BatchIterator> iterate(int64_t epoch, int64_t first_batch = 0) override;

  /// Returns a loader of this process's share; null if the training loader returns null.
  std::shared_ptr<DataLoader> shared(const DataLoaderOptions& defaults) const override;
  bool returns_own_share() const override { return loader_->returns_own_share(); }

 private:
  std::shared_ptr<DataLoader> loader_;
};

}  // namespace linkboy
