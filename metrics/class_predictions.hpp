#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <string>

#include "linkboy/export.hpp"
#include "linkboy/util/required.hpp"

namespace linkboy {

/// How the outputs of a model become classes.
struct ClassPredictionOptions {
  /// At least 2.
  Required<int64_t> num_classes;
  /// How many of the highest scores hold the right class if one of them does.
  int64_t top_k = 1;
  /// Samples with this label do not count. It need not be a class.
  std::optional<int64_t> ignore_index{};
  /// Where there is one score per sample, those above it are of class 1.
  double threshold = 0.5;

  /// @throws Error if num_classes, top_k or threshold is not allowed.
  void check() const;
  /// What labels must be.
  std::string label_rule() const;
};

/// The values for each sample of a batch, in one dimension.
struct ClassPredictions {
  at::Tensor predicted;  ///< int64, in [0, num_classes)
  at::Tensor labels;     ///< int64, in [0, num_classes)
  at::Tensor counts;     ///< int64: 0 if the sample is ignored, else 1
  /// bool: labels and classes that were none, which the above do not count. Undefined on the CPU.
  at::Tensor is_out_of_range;
};

/// Reads a batch. Waits for no device.
///
/// @param outputs  One of
///        - scores [N, C, ...], of which the highest (the first of equals) is the class;
///        - class indexes [N, ...], of an integer type or bool;
///        - with two classes, floating-point scores of class 1, [N, ...] or [N, 1, ...].
/// @param targets  Labels [N, ...], of an integer type or bool.
/// @throws Error if dtypes, shapes or devices do not fit, or, on the CPU, if a label is no class.
LINKBOY_API ClassPredictions predict_classes(const at::Tensor& outputs, const at::Tensor& targets,
                                             const ClassPredictionOptions& options);

}  // namespace linkboy
