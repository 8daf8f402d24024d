#pragma once

#include <cstdint>
#include <memory>

#include "linkboy/data/data_loader.hpp"
#include "linkboy/export.hpp"

namespace linkboy {

/// A loader that returns only the first batches of each epoch of another loader.
class LINKBOY_API LimitedLoader final : public DataLoader {
 public:
  /// @param max_batches  Largest number of batches per epoch on this process. If `loader` has
  ///        fewer, all of them are returned. Use 0 on a process that must not return any batches.
  /// @param repeats_first_epoch  If true, every epoch has the batches of the first one.
  /// @throws Error if `loader` is null or `max_batches` is negative.
  LimitedLoader(std::shared_ptr<DataLoader> loader, int64_t max_batches,
                bool repeats_first_epoch = false);

  int64_t size() const override;
  int64_t batch_size() const override { return loader_->batch_size(); }
  std::unique_ptr<BatchIterator> iterate(int64_t epoch, int64_t first_batch = 0) override;
  std::unique_ptr<BatchIterator> peek(int64_t epoch, int64_t max_batches) override;

  /// Returns a loader with at most `max_batches` batches of this process's share; null if the
  /// limited loader returns null.
  std::shared_ptr<DataLoader> shared(const DataLoaderOptions& defaults) const override;
  bool returns_own_share() const override { return loader_->returns_own_share(); }

  StateDict state_dict() const override { return loader_->state_dict(); }
  void load_state_dict(const StateDict& state) override { loader_->load_state_dict(state); }

 private:
  std::shared_ptr<DataLoader> loader_;
  int64_t max_batches_;
  bool repeats_first_epoch_;
};

}  // namespace linkboy
