// Converts outputs of all accepted forms (scores per class, scores of class 1, class indexes) to
// predicted classes, and counts them per class or in a confusion matrix. A metric is a formula of
// the counts.

#include "linkboy/metrics/classification.hpp"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <cmath>
#include <string>

#include "linkboy/error.hpp"

namespace linkboy {
namespace {

bool are_class_indexes(const at::Tensor& tensor) {
  return at::isIntegralType(tensor.scalar_type(), /*includeBool=*/true);
}

/// Whether `outputs` has the shape of `targets` with an additional dimension 1 of size `size`.
bool has_dimension_more(const at::Tensor& outputs, const at::Tensor& targets, int64_t size) {
  return outputs.dim() == targets.dim() + 1 && outputs.size(0) == targets.size(0) &&
         outputs.size(1) == size && outputs.sizes().slice(2) == targets.sizes().slice(1);
}

at::Tensor best_of_top_k(const at::Tensor& scores, const at::Tensor& targets, int64_t top_k) {
  // `topk` returns equal scores in any order.
  const at::Tensor highest =
      at::argsort(scores, /*stable=*/true, /*dim=*/1, /*descending=*/true).slice(1, 0, top_k);
  const at::Tensor is_among = highest.eq(targets.unsqueeze(1)).any(1);
  return at::where(is_among, targets, highest.select(1, 0));
}

at::Tensor classes_of(const at::Tensor& outputs, const at::Tensor& targets,
                      const ClassPredictionOptions& options) {
  const bool are_scores = outputs.is_floating_point();
  if (are_scores && has_dimension_more(outputs, targets, options.num_classes)) {
    return options.top_k == 1 ? outputs.argmax(1) : best_of_top_k(outputs, targets, options.top_k);
  }
  LINKBOY_CHECK(options.top_k == 1, "top_k is ", options.top_k, ", but the outputs are ",
                outputs.scalar_type(), outputs.sizes(), " with targets ", targets.sizes(),
                "; top_k needs floating-point scores [N, ", options.num_classes, ", ...].");
  if (are_scores && options.num_classes == 2) {
    const bool is_column = has_dimension_more(outputs, targets, 1);
    if (is_column || outputs.sizes() == targets.sizes()) {
      return outputs.gt(options.threshold).view_as(targets).to(at::kLong);
    }
  }
  LINKBOY_CHECK(!are_scores && are_class_indexes(outputs) && outputs.sizes() == targets.sizes(),
                "the outputs are ", outputs.scalar_type(), outputs.sizes(), " and the targets ",
                targets.sizes(), ", with ", options.num_classes,
                " classes; for targets [N, ...] the outputs must be scores [N, ",
                options.num_classes, ", ...] or class indexes [N, ...]",
                options.num_classes == 2 ? ", or scores [N, ...] of class 1." : ".");
  return outputs.to(at::kLong);
}

/// Returns an error text that states which labels are valid.
std::string label_rule(const ClassPredictionOptions& options) {
  return c10::str("labels must lie in [0, ", options.num_classes - 1,
                  "]. Check num_classes, or set ignore_index to the label of samples that do not "
                  "count.");
}

void check_range(const at::Tensor& classes, const at::Tensor& is_counted, const char* what,
                 const ClassPredictionOptions& options) {
  if (classes.numel() == 0) return;
  const auto [least, most] = at::aminmax(at::where(is_counted, classes, 0));
  const auto lowest = least.item<int64_t>();
  const auto highest = most.item<int64_t>();
  LINKBOY_CHECK(lowest >= 0 && highest < options.num_classes, what, " is ",
                lowest < 0 ? lowest : highest, ", but num_classes is ", options.num_classes, "; ",
                label_rule(options));
}

at::Tensor is_no_class(const at::Tensor& classes, int64_t num_classes) {
  return (classes < 0) | (classes >= num_classes);
}

// States of ClassCountsMetric.
constexpr std::size_t kTruePositives = 0;
constexpr std::size_t kFalsePositives = 1;
constexpr std::size_t kFalseNegatives = 2;

}  // namespace

// ---- Predicted classes

ClassMetric::ClassMetric(ClassPredictionOptions options) : options_(options) {
  LINKBOY_CHECK_OPTION(options_.num_classes >= 2, "num_classes is ", options_.num_classes,
                       "; it must be at least 2. Use 2 for binary classification.");
  LINKBOY_CHECK_OPTION(options_.top_k >= 1 && options_.top_k <= options_.num_classes, "top_k is ",
                       options_.top_k, ", but num_classes is ", options_.num_classes,
                       "; it must lie in [1, ", options_.num_classes, "].");
  LINKBOY_CHECK_OPTION(!std::isnan(options_.threshold), "threshold is NaN; it must be a number.");
  add_rule(label_rule(options_));
}

void ClassMetric::update(const at::Tensor& outputs, const at::Tensor& targets) {
  const at::NoGradGuard no_grad;
  LINKBOY_CHECK(are_class_indexes(targets), "the targets are ", targets.scalar_type(),
                targets.sizes(),
                "; they must be class indexes of an integer type, such as at::kLong.");
  LINKBOY_CHECK(targets.dim() > 0, "the targets have no dimension 0; they must be [N, ...].");
  LINKBOY_CHECK(outputs.device() == targets.device(), "the outputs are on ", outputs.device(),
                ", but the targets are on ", targets.device(), "; move them to the same device.");
  at::Tensor labels = targets.to(at::kLong);
  const at::Tensor predicted = classes_of(outputs, labels, options_).reshape({-1});
  labels = labels.reshape({-1});
  at::Tensor is_counted =
      options_.ignore_index ? labels.ne(*options_.ignore_index) : at::ones_like(labels, at::kBool);
  if (targets.is_cpu()) {
    check_range(labels, is_counted, "a label of the targets", options_);
    check_range(predicted, is_counted, "a class index of the outputs", options_);
  }
  follow(outputs);
  if (!targets.is_cpu()) {
    const at::Tensor is_out_of_range =
        (is_no_class(labels, options_.num_classes) | is_no_class(predicted, options_.num_classes)) &
        is_counted;
    count_violations(0, is_out_of_range);
    is_counted = is_counted & ~is_out_of_range;
  }
  add({.predicted = predicted.clamp(0, options_.num_classes - 1),
       .labels = labels.clamp(0, options_.num_classes - 1),
       .counts = is_counted.to(at::kLong)});
}

// ---- Counts of each class

ClassCountsMetric::ClassCountsMetric(ClassPredictionOptions predictions, Average average,
                                     ClassScore score)
    : ClassMetric(predictions), average_(average), score_(score) {
  LINKBOY_CHECK_OPTION(average != Average::binary || predictions.num_classes == 2,
                       "average is binary, but num_classes is ", predictions.num_classes,
                       "; it must be 2.");
  for (const char* name : {"true_positives", "false_positives", "false_negatives"}) {
    add_state(name, at::zeros({predictions.num_classes}, at::kLong), Merge::sum);
  }
}

void ClassCountsMetric::add(const Classes& batch) {
  const at::Tensor right = batch.counts.mul(batch.predicted.eq(batch.labels));
  const at::Tensor wrong = batch.counts.sub(right);
  // bincount would wait for the device.
  state(kTruePositives).index_add_(0, batch.labels, right);
  state(kFalsePositives).index_add_(0, batch.predicted, wrong);
  state(kFalseNegatives).index_add_(0, batch.labels, wrong);
}

at::Tensor ClassCountsMetric::scores_of(const Counts& counts, double undefined) const {
  const at::Tensor hits = score_.true_positive_weight * counts.true_positives;
  const at::Tensor all = hits + score_.false_negative_weight * counts.false_negatives +
                         score_.false_positive_weight * counts.false_positives;
  return at::where(all != 0, hits / all, undefined);
}

at::Tensor ClassCountsMetric::averaged(const Counts& counts) const {
  const at::Tensor num_labels = counts.true_positives + counts.false_negatives;
  at::Tensor weights = num_labels;
  if (average_ == Average::macro) {
    // With top_k, a wrong prediction is one of several, so its class does not count as present.
    const bool is_top_1 = predictions().top_k == 1;
    weights = (is_top_1 ? num_labels + counts.false_positives : num_labels).ne(0).to(at::kDouble);
  }
  const at::Tensor total = weights.sum();
  return at::where(total != 0, (weights * scores_of(counts, 0.0)).sum() / total,
                   score_.undefined_average);
}

at::Tensor ClassCountsMetric::value_of(const std::vector<at::Tensor>& states) const {
  Counts counts{states[kTruePositives].to(at::kDouble), states[kFalsePositives].to(at::kDouble),
                states[kFalseNegatives].to(at::kDouble)};
  const int64_t ignored = predictions().ignore_index.value_or(-1);
  if (score_.drop_ignored_class && ignored >= 0 && ignored < predictions().num_classes) {
    counts.false_positives[ignored] = 0.0;
  }
  if (average_ == Average::macro || average_ == Average::weighted) return averaged(counts);
  if (average_ == Average::micro) {
    counts = {counts.true_positives.sum(), counts.false_positives.sum(),
              counts.false_negatives.sum()};
  }
  const at::Tensor scores = scores_of(counts, score_.undefined_score);
  return average_ == Average::binary ? scores[1] : scores;
}

FBeta::FBeta(const FBetaOptions& options)
    : ClassCountsMetric(predictions_of(options), options.average,
                        {.true_positive_weight = 1.0 + options.beta * options.beta,
                         .false_negative_weight = options.beta * options.beta,
                         .false_positive_weight = 1.0}) {
  LINKBOY_CHECK_OPTION(std::isfinite(options.beta * options.beta) && options.beta > 0.0, "beta is ",
                       options.beta, "; it must be positive and finite.");
}

// ---- Confusion matrix

ConfusionCountsMetric::ConfusionCountsMetric(ClassPredictionOptions predictions, Formula formula)
    : ClassMetric(predictions), formula_(std::move(formula)) {
  const int64_t size = predictions.num_classes;
  add_state("confusion_matrix", at::zeros({size, size}, at::kLong), Merge::sum);
}

void ConfusionCountsMetric::add(const Classes& batch) {
  // bincount would wait for the device.
  state(0).view({-1}).index_add_(0, batch.labels * *predictions().num_classes + batch.predicted,
                                 batch.counts);
}

at::Tensor ConfusionCountsMetric::value_of(const std::vector<at::Tensor>& states) const {
  return formula_(states[0].to(at::kDouble));
}

ConfusionMatrix::ConfusionMatrix(const ConfusionMatrixOptions& options)
    : ConfusionCountsMetric(predictions_of(options),
                            [normalize = options.normalize](const at::Tensor& counts) {
                              switch (normalize) {
                                case Normalize::none:
                                  break;
                                case Normalize::labels:
                                  return (counts / counts.sum(1, /*keepdim=*/true)).nan_to_num();
                                case Normalize::predictions:
                                  return (counts / counts.sum(0, /*keepdim=*/true)).nan_to_num();
                                case Normalize::all:
                                  return (counts / counts.sum()).nan_to_num();
                              }
                              return counts;
                            }) {}

CohenKappa::CohenKappa(const CohenKappaOptions& options)
    : ConfusionCountsMetric(
          predictions_of(options), [kind = options.weights](const at::Tensor& counts) {
            // The weighted disagreement, divided by the one expected by chance.
            const at::Tensor by_chance = at::outer(counts.sum(1), counts.sum(0)) / counts.sum();
            const at::Tensor classes = at::arange(counts.size(0), at::kDouble);
            const at::Tensor distance = (classes.unsqueeze(1) - classes).abs();
            at::Tensor weights = distance;
            if (kind == KappaWeights::none) weights = distance.ne(0);
            if (kind == KappaWeights::quadratic) weights = distance.square();
            return 1.0 - (weights * counts).sum() / (weights * by_chance).sum();
          }) {}

MatthewsCorrCoef::MatthewsCorrCoef(const MatthewsCorrCoefOptions& options)
    : ConfusionCountsMetric(predictions_of(options), [](const at::Tensor& counts) {
        const at::Tensor labels = counts.sum(1);
        const at::Tensor predictions = counts.sum(0);
        const at::Tensor total = counts.sum();
        const at::Tensor covariance = counts.trace() * total - (labels * predictions).sum();
        // Exactly 0 if there is only one class.
        const at::Tensor variances =
            (predictions * (total - predictions)).sum() * (labels * (total - labels)).sum();
        return at::where(variances != 0, covariance / variances.sqrt(), 0.0);
      }) {}

}  // namespace linkboy
