#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <string>

#include "linkboy/export.hpp"
#include "linkboy/util/required.hpp"

namespace linkboy {

/// How the outputs of a model are converted to classes.
struct ClassPredictionOptions {
  /// Number of classes. Must be at least 2.
  Required<int64_t> num_classes;
  /// A prediction is correct if the label is among the `top_k` highest scores. Of equal scores, the
  /// first counts as higher. Must be in [1, num_classes].
  int64_t top_k = 1;
  /// Label of samples to ignore. It does not have to be in [0, num_classes).
  std::optional<int64_t> ignore_index{};
  /// If the outputs have one score per sample, scores above this value are class 1. Must not be
  /// NaN.
  double threshold = 0.5;

  /// Checks the options.
  /// @throws OptionError if `num_classes`, `top_k` or `threshold` is out of range.
  void check() const;
  /// Returns an error text that states which labels are valid.
  std::string label_rule() const;
};

/// The predictions and labels of a batch. Each tensor is [N], with one element per sample.
struct ClassPredictions {
  at::Tensor predicted;  ///< int64, in [0, num_classes)
  at::Tensor labels;     ///< int64, in [0, num_classes)
  at::Tensor counts;     ///< int64: 1 if the sample counts, otherwise 0
  /// bool: whether the label or the predicted class is out of range. Such a sample does not count.
  /// Undefined on the CPU.
  at::Tensor is_out_of_range;
};

/// Converts a batch to predicted classes and labels. Does not wait for a CUDA device.
///
/// @param outputs  One of
///        - floating-point scores [N, C, ...]; the predicted class is the one with the highest
///          score (the first one if scores are equal);
///        - class indexes [N, ...], of an integer type or bool;
///        - with two classes, floating-point scores of class 1, [N, ...] or [N, 1, ...].
/// @param targets  Labels [N, ...], of an integer type or bool.
/// @throws Error if dtypes, shapes or devices do not match, or, on the CPU, if a label or a class
///         index is out of range.
LINKBOY_API ClassPredictions predict_classes(const at::Tensor& outputs, const at::Tensor& targets,
                                             const ClassPredictionOptions& options);

}  // namespace linkboy
