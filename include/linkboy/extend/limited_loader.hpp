#pragma once

#include <cstdint>
#include <memory>

#include "linkboy/data/data_loader.hpp"
#include "linkboy/export.hpp"

namespace linkboy {

/// The first batches of each epoch of another loader.
class LINKBOY_API LimitedLoader final : public DataLoader {
 public:
  /// @param max_batches  Of this process; 0 on one that has no part in the first batches of all. If
  ///        the loader has fewer, it has what it has.
  /// @param repeats_first_epoch  Whether every epoch has the batches of the first one.
  /// @throws Error if `loader` is null or `max_batches` negative.
  LimitedLoader(std::shared_ptr<DataLoader> loader, int64_t max_batches,
                bool repeats_first_epoch = false);

  int64_t size() const override;
  int64_t batch_size() const override { return loader_->batch_size(); }
  std::unique_ptr<BatchIterator> iterate(int64_t epoch, int64_t first_batch = 0) override;

  /// At most `max_batches` of what the limited loader gives this process.
  std::shared_ptr<DataLoader> shared(const DataLoaderOptions& defaults) const override;

  StateDict state_dict() const override { return loader_->state_dict(); }
  void load_state_dict(const StateDict& state) override { loader_->load_state_dict(state); }

 private:
  std::shared_ptr<DataLoader> loader_;
  int64_t max_batches_;
  bool repeats_first_epoch_;
};

}  // namespace linkboy
