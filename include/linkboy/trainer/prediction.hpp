#pragma once

#include <ATen/core/ivalue.h>

#include <cstdint>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "linkboy/export.hpp"

namespace linkboy {

class Accelerator;
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

/// Collects rows batch by batch, and gathers those of all processes in the order of the data. A
/// batch's rows are a tensor with one row, or a list with one entry, per sample; tuples and dicts
/// can contain these.
class LINKBOY_API PredictedRows {
 public:
  /// @param name  Name of the rows in errors, such as "predictions".
  /// @param advice  Last sentence of errors: what to do about rows of a wrong form.
  PredictedRows(std::string name, std::string advice)
      : name_(std::move(name)), advice_(std::move(advice)) {}

  /// The name in errors.
  const std::string& name() const { return name_; }

  /// Copies the rows of a batch to the CPU.
  /// @param places  For each sample, a number that increases in the order of the data.
  /// @throws Error if there is not one row per sample, or if the form of the batch, or the shape or
  ///         dtype of its rows, differs from that of the first one.
  void add(const c10::IValue& rows, const std::vector<int64_t>& places);

  /// Removes the rows, and returns those of all processes on all of them; None if there are none.
  /// With several processes, only the first of the rows with the same place is used.
  /// @throws Error under the same conditions as `add`, for the batches of different processes.
  /// @note Collective.
  c10::IValue gather(const Accelerator& accelerator);

 private:
  void check_one_per_sample(const c10::IValue& rows, int64_t num_samples) const;
  void check_same_form(const c10::IValue& first, const c10::IValue& other) const;
  c10::IValue concatenated(const std::vector<c10::IValue>& batches) const;

  std::string name_;
  std::string advice_;
  std::vector<c10::IValue> batches_;  // tuples of the places and the rows
};

}  // namespace linkboy
