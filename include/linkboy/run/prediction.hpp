#pragma once

#include <ATen/core/ivalue.h>

#include <cstdint>
#include <functional>
#include <vector>

namespace linkboy {

class Batch;

/// What a model predicts for one batch.
struct Prediction {
  /// What `Trainer::predict_step` has returned, on its device.
  c10::IValue outputs;
  /// Where the batch's samples stand in the order of the loader, from 0: that of the dataset unless
  /// the loader shuffles. Each process has its share of the batches.
  std::vector<int64_t> places;
};

/// Takes the predictions batch by batch, each on the process that made it.
using PredictionSink = std::function<void(const Batch&, const Prediction&)>;

}  // namespace linkboy
