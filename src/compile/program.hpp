#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/FunctionRef.h>

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "compile/recorder.hpp"
#include "linkboy/data/batch.hpp"
#include "linkboy/error.hpp"

namespace linkboy {

/// A program cannot be compiled, or its package cannot be used.
class CompileError : public Error {
 public:
  using Error::Error;
};

/// Returns a number of a program, which may depend on the batch: {"size": [factor, offset]}.
int64_t size_at(const nlohmann::json& size, int64_t num_samples);

/// A tensor of the batches for which a program is.
struct BatchTensor {
  std::string name;
  at::ScalarType dtype;
  std::vector<int64_t> shape, strides;
  /// Whether dimension 0 has as many elements as the batch has samples, for any number of them.
  bool has_samples;
};

/// What must be compiled: the calls of a recorded step, for batches of one size or of any.
class Program {
 public:
  /// Combines recordings of one step with different numbers of samples: what differs must follow
  /// the number of samples. If it does not, the program is for batches of the first recording's
  /// size.
  /// @param sizes  The number of samples of each recording.
  Program(const std::vector<Recording>& recordings, const std::vector<int64_t>& sizes);

  /// Records a function also with two other numbers of samples, to learn which numbers follow the
  /// size of a batch.
  /// @param whole  The recording with the batch itself.
  static Program of(const Recording& whole, const Batch& batch,
                    c10::function_ref<Recording(const Batch&)> record_batch);

  /// The file that compile.py reads. Equal programs have equal texts.
  const std::string& text() const { return text_; }
  /// Whether the program works for batches of different sizes.
  bool has_any_size() const { return has_any_size_; }
  std::size_t num_calls() const { return calls_.size(); }
  /// The inputs that the program reads, as indices of the recording's inputs.
  const std::vector<std::size_t>& inputs() const { return inputs_; }
  /// The constants of the recordings, whose numbers may depend on the batch.
  const nlohmann::json& constants() const { return constants_; }
  const std::vector<BatchTensor>& batch() const { return batch_; }
  /// What a recording with a batch that fits must be.
  Recording expected(int64_t num_samples) const;

  /// Whether the program works for a batch.
  bool fits(const Batch& batch) const;
  /// Whether it would work for a batch with another number of samples.
  bool fits_but_for_size(const Batch& batch) const;

 private:
  void use(const nlohmann::json& program, const std::vector<at::Tensor>& tensors);
  bool is_like(const Batch& batch, bool compares_samples) const;

  std::string text_;
  bool has_any_size_ = false;
  std::vector<std::size_t> inputs_;
  nlohmann::json constants_;
  nlohmann::json calls_;
  nlohmann::json outputs_;
  std::vector<BatchTensor> batch_;
  nlohmann::json all_inputs_;        // of the recordings
  std::vector<at::Tensor> state_{};  // their tensors, without those of the batch
};

/// Describes the first difference of two recordings of a step that ought to be equal; empty if they
/// are. Does not compare the tensors of the batch.
std::string difference(const Recording& first, const Recording& second);

/// Calls `record`, which returns a struct with a Recording, until two of them are equal: a module
/// may fill a cache when it is called for the first time.
/// @throws CompileError if they never are, and what `record` throws.
template <class Record>
auto record_until_settled(const Record& record) {
  constexpr int kMostRecordings = 4;
  auto recorded = record();
  std::string found;
  for (int i = 1; i < kMostRecordings; ++i) {
    auto again = record();
    found = difference(recorded.recording, again.recording);
    recorded = std::move(again);
    if (found.empty()) return recorded;
  }
  throw CompileError(c10::str("it does other work each time (", found, ")."));
}

}  // namespace linkboy
