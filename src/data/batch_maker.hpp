#pragma once

#include <cstdint>

#include "linkboy/data_loader.hpp"

namespace linkboy {

/// Makes any batch of an epoch: sampling, gathering, collating, transforming, pinning. One object
/// a thread.
class BatchMaker {
 public:
  BatchMaker(Dataset dataset, const DataLoaderOptions& options, int64_t epoch)
      : dataset_(std::move(dataset)), options_(options), epoch_(epoch) {}

  Batch make(int64_t batch_index) const;

 private:
  Dataset dataset_;
  DataLoaderOptions options_;
  int64_t epoch_;
};

/// Makes batches [first, end) on threads, ahead of the reader and in order.
std::unique_ptr<BatchIterator> prefetch(const Dataset& dataset, const DataLoaderOptions& options,
                                        int64_t epoch, int64_t first, int64_t end);

}  // namespace linkboy
