#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "compile/recorder.hpp"
#include "linkboy/data/batch.hpp"

namespace linkboy {

/// Returns a number of a program, which may depend on the batch: {"size": [factor, offset]}.
int64_t size_at(const nlohmann::json& size, int64_t num_samples);

/// What must be compiled: the calls of a recorded step, for batches of one size or of any.
class Program {
 public:
  /// Combines recordings of one step with different numbers of samples: what differs must follow
  /// the number of samples. If it does not, the program is for batches of the first recording's
  /// size.
  /// @param sizes  The number of samples of each recording.
  Program(const std::vector<Recording>& recordings, const std::vector<int64_t>& sizes);

  /// The file that compile.py reads. Equal programs have equal texts.
  const std::string& text() const { return text_; }
  /// Whether the program works for batches of different sizes.
  bool has_any_size() const { return has_any_size_; }
  std::size_t num_calls() const { return num_calls_; }
  /// The inputs that the program reads, as indices of the recording's inputs.
  const std::vector<std::size_t>& inputs() const { return inputs_; }
  /// The constants of the recordings, whose numbers may depend on the batch.
  const nlohmann::json& constants() const { return constants_; }

  /// Whether the program works for a batch.
  bool fits(const Batch& batch) const;
  /// Whether it would work for a batch with another number of samples.
  bool fits_but_for_size(const Batch& batch) const;

 private:
  void use(const nlohmann::json& program);
  bool is_like(const Batch& batch, int64_t num_samples, bool compares_samples) const;

  std::string text_;
  bool has_any_size_ = false;
  std::size_t num_calls_ = 0;
  std::vector<std::size_t> inputs_;
  nlohmann::json constants_;
  std::vector<nlohmann::json> batch_;  // its inputs
};

/// Describes the first difference of two recordings of a step that ought to be equal; empty if they
/// are.
std::string difference(const Recording& first, const Recording& second);

}  // namespace linkboy
