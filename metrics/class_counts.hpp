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

/// What becomes of the values of the classes.
enum class Average {
  micro,     ///< one value, over all samples whatever their class
  macro,     ///< the mean over the classes that occur
  weighted,  ///< the mean, each class by its number of labels
  none,      ///< no mean: [num_classes]
  binary,    ///< the value of class 1, of two classes
};

LINKBOY_ENUM_NAMES(Average, micro, macro, weighted, none, binary)

/// Options of PrecisionScore, RecallScore, IoU and Dice. See `predict_classes` for the outputs.
struct ClassificationOptions {
  /// At least 2.
  Required<int64_t> num_classes;
  /// How the values of the classes become one.
  Average average = Average::macro;
  /// Samples with this label do not count. It need not be a class.
  std::optional<int64_t> ignore_index{};
  /// With one score per sample: those above it are of class 1. It is compared with the outputs as
  /// they are: 0.5 is right for probabilities, 0 for logits.
  double threshold = 0.5;

  LINKBOY_FIELDS(num_classes, average, ignore_index, threshold);
};

/// How counts become a value: the true positives' part of all three, each with its weight. What is
/// 0/0 is defined by the metric.
struct ClassScoreOptions {
  /// How the values of the classes become one.
  Average average = Average::macro;
  double true_positive_weight = 1.0;   ///< samples of the class that were taken for it
  double false_negative_weight = 0.0;  ///< samples of the class that were taken for others
  double false_positive_weight = 0.0;  ///< samples of other classes that were taken for it
  double undefined_score = 0.0;        ///< of a class, or of all samples
  double undefined_average = 0.0;      ///< of no class
  /// Whether predictions of the class `ignore_index` are not held against it, so that it does not
  /// occur.
  bool drop_ignored_class = false;
};

/// A metric of the true and false positives and the false negatives. Keeps 3 counts per class.
class LINKBOY_API ClassCountsMetric : public Metric {
 public:
  /// Outputs and targets as `predict_classes` takes them.
  void update(const at::Tensor& outputs, const at::Tensor& targets) override;

 protected:
  /// @throws Error if the options are not allowed.
  ClassCountsMetric(ClassPredictionOptions predictions, ClassScoreOptions score);
  /// @throws Error if the options are not allowed.
  ClassCountsMetric(const ClassificationOptions& options, ClassScoreOptions score);

  at::Tensor value_of(const std::vector<at::Tensor>& states) const override;

 private:
  /// double [num_classes], or their sums.
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
