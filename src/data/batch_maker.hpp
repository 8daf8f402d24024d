#pragma once

#include <cstdint>

#include "distributed/batch_shard.hpp"
#include "linkboy/data_loader.hpp"

namespace linkboy {

/// Which samples a loader with these options (all set) gives.
BatchShard shard_of(const DataLoaderOptions& options);

/// Makes any batch of an epoch: sampling, gathering, collating, transforming, pinning. One object
/// a thread.
class BatchMaker {
 public:
  BatchMaker(Dataset dataset, const DataLoaderOptions& options, int64_t epoch)
      : dataset_(std::move(dataset)), options_(options), epoch_(epoch), shard_(shard_of(options)) {}

  Batch make(int64_t batch_index) const;

 private:
  Dataset dataset_;
  DataLoaderOptions options_;
  int64_t epoch_;
  BatchShard shard_;
};

/// Makes batches [first, end) on threads, ahead of the reader and in order.
std::unique_ptr<BatchIterator> prefetch(const Dataset& dataset, const DataLoaderOptions& options,
                                        int64_t epoch, int64_t first, int64_t end);

}  // namespace linkboy
