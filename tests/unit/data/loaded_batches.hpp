// Helpers for tests of loaders.

#pragma once

#include <torch/torch.h>

#include <vector>

#include "linkboy/data/data_loader.hpp"

namespace linkboy::testing {

using Samples = std::vector<int64_t>;
using Batches = std::vector<Samples>;

/// Returns a dataset whose sample i is the number i.
inline Dataset numbers(int64_t size) {
  return TensorDataset(NamedTensors{{"input", torch::arange(size)}});
}

/// Returns the samples of each remaining batch.
inline Batches rest_of(BatchIterator& batches) {
  Batches all;
  while (const auto batch = batches.next()) {
    const auto rows = batch->input().contiguous();
    all.emplace_back(rows.data_ptr<int64_t>(), rows.data_ptr<int64_t>() + rows.numel());
  }
  return all;
}

inline Batches batches_of(DataLoader& loader, int64_t epoch, int64_t first_batch = 0) {
  return rest_of(*loader.iterate(epoch, first_batch));
}

/// Returns the samples of all batches of an epoch.
inline Samples samples_of(DataLoader& loader, int64_t epoch, int64_t first_batch = 0) {
  Samples all;
  for (const Samples& batch : batches_of(loader, epoch, first_batch)) {
    all.insert(all.end(), batch.begin(), batch.end());
  }
  return all;
}

}  // namespace linkboy::testing
