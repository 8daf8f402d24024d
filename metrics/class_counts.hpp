#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "linkboy/export.hpp"
#include "linkboy/metrics/class_predictions.hpp"
#include "linkboy/metrics/metric.hpp"
#include "linkboy/util/required.hpp"
#include "linkboy/util/text_options.hpp"

namespace linkboy {

/// How the values of the classes are combined.
enum class Average {
  micro,     ///< one value over all samples of all classes
  macro,     ///< the mean over the classes that occur as a label or (with top_k 1) a prediction
  weighted,  ///< the mean, weighted by the number of labels of each class
  none,      ///< no averaging; one value per class, shape [num_classes]
  binary,    ///< the value of class 1; needs two classes
};

LINKBOY_ENUM_NAMES(Average, micro, macro, weighted, none, binary)

/// Options of PrecisionScore, RecallScore, IoU and Dice. `predict_classes` describes the outputs.
struct ClassificationOptions {
  /// Number of classes. Must be at least 2.
  Required<int64_t> num_classes;
  /// How the values of the classes are combined.
  Average average = Average::macro;
  /// Label of samples to ignore. It does not have to be in [0, num_classes).
  std::optional<int64_t> ignore_index{};
  /// If the outputs have one score per sample, scores above this value are class 1. The outputs are
  /// compared without conversion: use 0.5 for probabilities and 0 for logits. Must not be NaN.
  double threshold = 0.5;

  LINKBOY_FIELDS(num_classes, average, ignore_index, threshold);
};

/// How counts are converted to a value: the weighted true positives divided by the weighted sum of
/// all three counts. The metric defines the value of 0/0.
struct ClassScoreOptions {
  /// How the values of the classes are combined.
  Average average = Average::macro;
  double true_positive_weight = 1.0;   ///< samples of the class that are predicted correctly
  double false_negative_weight = 0.0;  ///< samples of the class that are predicted as another one
  double false_positive_weight = 0.0;  ///< samples of other classes that are predicted as this one
  double undefined_score = 0.0;        ///< the value of 0/0 for a class or for all samples
  double undefined_average = 0.0;      ///< the mean if no class occurs
  /// If true, predictions of the class `ignore_index` do not count as its false positives, so this
  /// class counts as absent.
  bool drop_ignored_class = false;
};

/// Base class of metrics that are computed from the true positives, false positives and false
/// negatives of each class. Keeps three counts per class.
class LINKBOY_API ClassCountsMetric : public Metric {
 public:
  /// Adds a batch. `predict_classes` describes the outputs and targets.
  /// @throws Error under the same conditions as `predict_classes`.
  void update(const at::Tensor& outputs, const at::Tensor& targets) override;

 protected:
  /// @throws OptionError if an option is out of range, or if `average` is binary and `num_classes`
  ///         is not 2.
  ClassCountsMetric(ClassPredictionOptions predictions, ClassScoreOptions score);
  /// @throws OptionError if an option is out of range, or if `average` is binary and `num_classes`
  ///         is not 2.
  ClassCountsMetric(const ClassificationOptions& options, ClassScoreOptions score);

  at::Tensor value_of(const std::vector<at::Tensor>& states) const override;

 private:
  /// Counts of each class, double [num_classes], or their sums over the classes.
  struct Counts {
    at::Tensor true_positives;
    at::Tensor false_positives;
    at::Tensor false_negatives;
  };

  at::Tensor scores_of(const Counts& counts, double undefined) const;
  at::Tensor averaged(const Counts& counts) const;

  ClassPredictionOptions predictions_;
  ClassScoreOptions score_;
  std::size_t true_positives_;
  std::size_t false_positives_;
  std::size_t false_negatives_;
  std::size_t label_rule_;
};

}  // namespace linkboy
