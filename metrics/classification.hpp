#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <limits>
#include <optional>
#include <vector>

#include "linkboy/export.hpp"
#include "linkboy/metric.hpp"
#include "linkboy/util/make.hpp"
#include "linkboy/util/required.hpp"
#include "linkboy/util/text_options.hpp"

namespace linkboy {

// ---- Predicted classes --------------------------------------------------------------------------

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
};

/// Returns the members of a metric's options that determine its predictions.
template <class Options>
ClassPredictionOptions predictions_of(const Options& options) {
  ClassPredictionOptions predictions{.num_classes = options.num_classes,
                                     .ignore_index = options.ignore_index,
                                     .threshold = options.threshold};
  if constexpr (requires { options.top_k; }) predictions.top_k = options.top_k;
  return predictions;
}

/// Base class of metrics that compare predicted classes with labels.
class LINKBOY_API ClassMetric : public Metric {
 public:
  /// Adds a batch. Does not wait for a CUDA device.
  ///
  /// @param outputs  One of
  ///        - floating-point scores [N, C, ...]; the predicted class is the one with the highest
  ///          score (the first one if scores are equal);
  ///        - class indexes [N, ...], of an integer type or bool;
  ///        - with two classes, floating-point scores of class 1, [N, ...] or [N, 1, ...].
  /// @param targets  Labels [N, ...], of an integer type or bool.
  /// @throws Error if dtypes, shapes or devices do not match, or, on the CPU, if a label or a class
  ///         index is out of range.
  void update(const at::Tensor& outputs, const at::Tensor& targets) final;

 protected:
  /// The predictions and labels of a batch. Each tensor is int64 [N], with one element per sample.
  struct Classes {
    at::Tensor predicted;  ///< in [0, num_classes)
    at::Tensor labels;     ///< in [0, num_classes)
    at::Tensor counts;     ///< 1 if the sample counts, otherwise 0
  };

  /// @throws OptionError if an option is out of range.
  explicit ClassMetric(ClassPredictionOptions options);

  /// Adds a batch to the states, which are on its device.
  virtual void add(const Classes& batch) = 0;

  /// How the outputs are converted to classes.
  const ClassPredictionOptions& predictions() const { return options_; }

 private:
  ClassPredictionOptions options_;
};

// ---- Counts of each class -----------------------------------------------------------------------

/// How the values of the classes are combined.
enum class Average {
  micro,     ///< one value over all samples of all classes
  macro,     ///< the mean over the classes that occur as a label or (with top_k 1) a prediction
  weighted,  ///< the mean, weighted by the number of labels of each class
  none,      ///< no averaging; one value per class, shape [num_classes]
  binary,    ///< the value of class 1; needs two classes
};

LINKBOY_ENUM_NAMES(Average, micro, macro, weighted, none, binary)

/// How counts are converted to a value: the weighted true positives divided by the weighted sum of
/// all three counts. The metric defines the value of 0/0.
struct ClassScore {
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
class LINKBOY_API ClassCountsMetric : public ClassMetric {
 protected:
  /// @throws OptionError if an option is out of range, or if `average` is binary and `num_classes`
  ///         is not 2.
  ClassCountsMetric(ClassPredictionOptions predictions, Average average, ClassScore score);

  void add(const Classes& batch) override;
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

  Average average_;
  ClassScore score_;
};

struct AccuracyOptions {
  /// Number of classes. Must be at least 2.
  Required<int64_t> num_classes;
  /// A prediction is correct if the label is among the `top_k` highest scores. Of equal scores, the
  /// first counts as higher. Must be in [1, num_classes]. If above 1, the outputs must be scores of
  /// all classes.
  int64_t top_k = 1;
  /// How the values of the classes are combined. With two classes, `binary` is the same as `micro`.
  Average average = Average::micro;
  /// Label of samples to ignore. It does not have to be in [0, num_classes).
  std::optional<int64_t> ignore_index{};
  /// If the outputs have one score per sample, scores above this value are class 1. The outputs are
  /// compared without conversion: use 0.5 for probabilities and 0 for logits. Must not be NaN.
  double threshold = 0.5;

  LINKBOY_FIELDS(num_classes, top_k, average, ignore_index, threshold);
};

/// The fraction of samples that are predicted correctly. The value of a single class counts only
/// the samples with its label. The value is 0 if there are no such samples.
class LINKBOY_API Accuracy : public ClassCountsMetric {
 public:
  /// The options type for `make<Accuracy>({...})`.
  using Options = AccuracyOptions;

  /// @throws OptionError if an option is out of range, or if `average` is binary and `num_classes`
  ///         is not 2.
  explicit Accuracy(const AccuracyOptions& options)
      : ClassCountsMetric(predictions_of(options), average_of(options),
                          {.false_negative_weight = 1.0}) {}

 private:
  /// Whether a sample is predicted correctly does not depend on its class, so class 1 does not have
  /// a separate accuracy.
  static Average average_of(const AccuracyOptions& options) {
    const bool is_binary = options.average == Average::binary && options.num_classes == 2;
    return is_binary ? Average::micro : options.average;
  }
};
/// Makes an Accuracy.
inline constexpr Maker<Accuracy> accuracy{};

/// Options of PrecisionScore, RecallScore, IoU and Dice. `ClassMetric::update` describes the
/// outputs.
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

/// The fraction of a class's predictions that are correct. 0 if the class is never predicted.
class LINKBOY_API PrecisionScore : public ClassCountsMetric {
 public:
  /// The options type for `make<PrecisionScore>({...})`.
  using Options = ClassificationOptions;

  /// @throws OptionError if an option is out of range, or if `average` is binary and `num_classes`
  ///         is not 2.
  explicit PrecisionScore(const ClassificationOptions& options)
      : ClassCountsMetric(predictions_of(options), options.average,
                          {.false_positive_weight = 1.0}) {}
};
/// Makes a PrecisionScore.
inline constexpr Maker<PrecisionScore> precision_score{};

/// The fraction of a class's samples that are predicted correctly. 0 if the class has no samples.
class LINKBOY_API RecallScore : public ClassCountsMetric {
 public:
  /// The options type for `make<RecallScore>({...})`.
  using Options = ClassificationOptions;

  /// @throws OptionError if an option is out of range, or if `average` is binary and `num_classes`
  ///         is not 2.
  explicit RecallScore(const ClassificationOptions& options)
      : ClassCountsMetric(predictions_of(options), options.average,
                          {.false_negative_weight = 1.0}) {}
};
/// Makes a RecallScore.
inline constexpr Maker<RecallScore> recall_score{};

struct FBetaOptions {
  /// Number of classes. Must be at least 2.
  Required<int64_t> num_classes;
  /// Weight of the recall relative to the precision. Must be positive and finite.
  double beta = 1.0;
  /// How the values of the classes are combined.
  Average average = Average::macro;
  /// Label of samples to ignore. It does not have to be in [0, num_classes).
  std::optional<int64_t> ignore_index{};
  /// If the outputs have one score per sample, scores above this value are class 1. The outputs are
  /// compared without conversion: use 0.5 for probabilities and 0 for logits. Must not be NaN.
  double threshold = 0.5;

  LINKBOY_FIELDS(num_classes, beta, average, ignore_index, threshold);
};

/// The weighted harmonic mean of precision and recall; F1 by default. A class that does not occur
/// has the value 0.
class LINKBOY_API FBeta : public ClassCountsMetric {
 public:
  /// The options type for `make<FBeta>({...})`.
  using Options = FBetaOptions;

  /// @throws OptionError if an option is out of range, or if `average` is binary and `num_classes`
  ///         is not 2.
  explicit FBeta(const FBetaOptions& options);
};
/// Makes a FBeta.
inline constexpr Maker<FBeta> f_beta{};

/// Intersection over union (Jaccard index) of the samples (pixels) of a class and the samples that
/// are predicted as that class. An absent class, which is neither a label nor predicted, has the
/// value 0 and is left out of the mean; if all classes are absent, the mean is NaN. The class
/// `ignore_index` is treated as absent, even if it is predicted.
class LINKBOY_API IoU : public ClassCountsMetric {
 public:
  /// The options type for `make<IoU>({...})`.
  using Options = ClassificationOptions;

  /// @throws OptionError if an option is out of range, or if `average` is binary and `num_classes`
  ///         is not 2.
  explicit IoU(const ClassificationOptions& options)
      : ClassCountsMetric(predictions_of(options), options.average,
                          {.false_negative_weight = 1.0,
                           .false_positive_weight = 1.0,
                           .undefined_average = std::numeric_limits<double>::quiet_NaN(),
                           .drop_ignored_class = true}) {}
};
/// Makes an IoU.
inline constexpr Maker<IoU> iou{};

/// The Dice coefficient 2 |A n B| / (|A| + |B|) over all batches, where A is the set of samples
/// (pixels) of a class and B is the set of samples that are predicted as that class. An absent
/// class, which is neither a label nor predicted, has the value NaN and is left out of the mean; if
/// all classes are absent, the mean is NaN. The class `ignore_index` is treated as absent, even if
/// it is predicted.
class LINKBOY_API Dice : public ClassCountsMetric {
 public:
  /// The options type for `make<Dice>({...})`.
  using Options = ClassificationOptions;

  /// @throws OptionError if an option is out of range, or if `average` is binary and `num_classes`
  ///         is not 2.
  explicit Dice(const ClassificationOptions& options)
      : ClassCountsMetric(predictions_of(options), options.average,
                          {.true_positive_weight = 2.0,
                           .false_negative_weight = 1.0,
                           .false_positive_weight = 1.0,
                           .undefined_score = std::numeric_limits<double>::quiet_NaN(),
                           .undefined_average = std::numeric_limits<double>::quiet_NaN(),
                           .drop_ignored_class = true}) {}
};
/// Makes a Dice.
inline constexpr Maker<Dice> dice{};

// ---- Confusion matrix ---------------------------------------------------------------------------

/// Base class of metrics that are computed from the confusion matrix, which counts the samples for
/// each pair of label and prediction. Keeps num_classes^2 counts.
class LINKBOY_API ConfusionCountsMetric : public ClassMetric {
 protected:
  /// Returns the value for a confusion matrix, double [num_classes, num_classes]. Rows are labels,
  /// and columns are predictions.
  using Formula = std::function<at::Tensor(const at::Tensor& counts)>;

  /// @throws OptionError if an option is out of range.
  ConfusionCountsMetric(ClassPredictionOptions predictions, Formula formula);

  void add(const Classes& batch) override;
  at::Tensor value_of(const std::vector<at::Tensor>& states) const override;

 private:
  Formula formula_;
};

/// The divisor of the counts in a confusion matrix.
enum class Normalize {
  none,         ///< no division
  labels,       ///< the number of samples with the label; each row adds up to 1
  predictions,  ///< the number of samples with the prediction; each column adds up to 1
  all,          ///< the total number of samples
};

LINKBOY_ENUM_NAMES(Normalize, none, labels, predictions, all)

struct ConfusionMatrixOptions {
  /// Number of classes. Must be at least 2.
  Required<int64_t> num_classes;
  /// The divisor of the counts.
  Normalize normalize = Normalize::none;
  /// Label of samples to ignore. It does not have to be in [0, num_classes).
  std::optional<int64_t> ignore_index{};
  /// If the outputs have one score per sample, scores above this value are class 1. The outputs are
  /// compared without conversion: use 0.5 for probabilities and 0 for logits. Must not be NaN.
  double threshold = 0.5;

  LINKBOY_FIELDS(num_classes, normalize, ignore_index, threshold);
};

/// The number of samples for each pair of label and prediction: [num_classes, num_classes], where
/// rows are labels and columns are predictions. If the divisor of a count is 0, the value is 0.
class LINKBOY_API ConfusionMatrix : public ConfusionCountsMetric {
 public:
  /// The options type for `make<ConfusionMatrix>({...})`.
  using Options = ConfusionMatrixOptions;

  /// @throws OptionError if an option is out of range.
  explicit ConfusionMatrix(const ConfusionMatrixOptions& options);
};
/// Makes a ConfusionMatrix.
inline constexpr Maker<ConfusionMatrix> confusion_matrix{};

/// The weight of a disagreement between classes i and j.
enum class KappaWeights {
  none,       ///< 1
  linear,     ///< |i - j|
  quadratic,  ///< (i - j)^2
};

LINKBOY_ENUM_NAMES(KappaWeights, none, linear, quadratic)

struct CohenKappaOptions {
  /// Number of classes. Must be at least 2.
  Required<int64_t> num_classes;
  /// The weight of a disagreement.
  KappaWeights weights = KappaWeights::none;
  /// Label of samples to ignore. It does not have to be in [0, num_classes).
  std::optional<int64_t> ignore_index{};
  /// If the outputs have one score per sample, scores above this value are class 1. The outputs are
  /// compared without conversion: use 0.5 for probabilities and 0 for logits. Must not be NaN.
  double threshold = 0.5;

  LINKBOY_FIELDS(num_classes, weights, ignore_index, threshold);
};

/// Cohen's kappa: the agreement of labels and predictions beyond chance; 1 is complete agreement.
/// The value is NaN if no disagreement is expected by chance, for example because only one class
/// occurs, or if there are no samples.
class LINKBOY_API CohenKappa : public ConfusionCountsMetric {
 public:
  /// The options type for `make<CohenKappa>({...})`.
  using Options = CohenKappaOptions;

  /// @throws OptionError if an option is out of range.
  explicit CohenKappa(const CohenKappaOptions& options);
};
/// Makes a CohenKappa.
inline constexpr Maker<CohenKappa> cohen_kappa{};

struct MatthewsCorrCoefOptions {
  /// Number of classes. Must be at least 2.
  Required<int64_t> num_classes;
  /// Label of samples to ignore. It does not have to be in [0, num_classes).
  std::optional<int64_t> ignore_index{};
  /// If the outputs have one score per sample, scores above this value are class 1. The outputs are
  /// compared without conversion: use 0.5 for probabilities and 0 for logits. Must not be NaN.
  double threshold = 0.5;

  LINKBOY_FIELDS(num_classes, ignore_index, threshold);
};

/// The Matthews correlation coefficient of labels and predictions, in [-1, 1]. As in scikit-learn,
/// the value is 0 if only one class is predicted or only one class occurs as a label, even if all
/// samples are correct.
class LINKBOY_API MatthewsCorrCoef : public ConfusionCountsMetric {
 public:
  /// The options type for `make<MatthewsCorrCoef>({...})`.
  using Options = MatthewsCorrCoefOptions;

  /// @throws OptionError if an option is out of range.
  explicit MatthewsCorrCoef(const MatthewsCorrCoefOptions& options);
};
/// Makes a MatthewsCorrCoef.
inline constexpr Maker<MatthewsCorrCoef> matthews_corr_coef{};

}  // namespace linkboy
