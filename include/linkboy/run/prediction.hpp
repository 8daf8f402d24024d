#pragma once

#include <ATen/core/ivalue.h>

#include <cstdint>
#include <functional>
#include <vector>

namespace linkboy {

class Batch;

/// The predictions of a model for one batch.
struct Prediction {
  /// Output of `Trainer::predict_step`, on its device. The next batch may overwrite it if the model
  /// or the loader reuses its memory.
  c10::IValue outputs;
  /// Positions of the batch's samples in the loader's order, from 0. This is the dataset's order
  /// unless the loader shuffles. Each process receives its share of the batches.
  std::vector<int64_t> places;
};

/// Receives the predictions batch by batch, each on the process that computed it.
using PredictionSink = std::function<void(const Batch&, const Prediction&)>;

}  // namespace linkboy
