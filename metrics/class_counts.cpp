// Counts true positives, false positives and false negatives per class. Precision, recall, F-beta,
// IoU and Dice are ratios of weighted sums of these counts.

#include "linkboy/metrics/class_counts.hpp"

#include <ATen/ATen.h>

#include "linkboy/error.hpp"

namespace linkboy {

ClassCountsMetric::ClassCountsMetric(ClassPredictionOptions predictions, ClassScoreOptions score)
    : predictions_(predictions), score_(score) {
  predictions_.check();
  LINKBOY_CHECK_OPTION(score_.average != Average::binary || predictions_.num_classes == 2,
                       "average is binary, but num_classes is ", predictions_.num_classes,
                       "; it must be 2.");
  const at::Tensor none = at::zeros({predictions_.num_classes}, at::kLong);
  true_positives_ = add_state("true_positives", none, Merge::sum);
  false_positives_ = add_state("false_positives", none, Merge::sum);
  false_negatives_ = add_state("false_negatives", none, Merge::sum);
  label_rule_ = add_rule(predictions_.label_rule());
}

ClassCountsMetric::ClassCountsMetric(const ClassificationOptions& options, ClassScoreOptions score)
    : ClassCountsMetric(ClassPredictionOptions{.num_classes = options.num_classes,
                                               .ignore_index = options.ignore_index,
                                               .threshold = options.threshold},
                        score) {}

void ClassCountsMetric::update(const at::Tensor& outputs, const at::Tensor& targets) {
  const ClassPredictions batch = predict_classes(outputs, targets, predictions_);
  follow(outputs);
  if (batch.is_out_of_range.defined()) count_violations(label_rule_, batch.is_out_of_range);
  const at::Tensor right = batch.counts.mul(batch.predicted.eq(batch.labels));
  const at::Tensor wrong = batch.counts.sub(right);
  // bincount would wait for the device.
  state(true_positives_).index_add_(0, batch.labels, right);
  state(false_positives_).index_add_(0, batch.predicted, wrong);
  state(false_negatives_).index_add_(0, batch.labels, wrong);
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
  if (score_.average == Average::macro) {
    // With top_k, a wrong prediction is one of several, so its class does not count as present.
    const bool is_top_1 = predictions_.top_k == 1;
    weights = (is_top_1 ? num_labels + counts.false_positives : num_labels).ne(0).to(at::kDouble);
  }
  const at::Tensor total = weights.sum();
  return at::where(total != 0, (weights * scores_of(counts, 0.0)).sum() / total,
                   score_.undefined_average);
}

at::Tensor ClassCountsMetric::value_of(const std::vector<at::Tensor>& states) const {
  Counts counts{states[true_positives_].to(at::kDouble), states[false_positives_].to(at::kDouble),
                states[false_negatives_].to(at::kDouble)};
  const int64_t ignored = predictions_.ignore_index.value_or(-1);
  if (score_.drop_ignored_class && ignored >= 0 && ignored < predictions_.num_classes) {
    counts.false_positives[ignored] = 0.0;
  }
  if (score_.average == Average::macro || score_.average == Average::weighted) {
    return averaged(counts);
  }
  if (score_.average == Average::micro) {
    counts = {counts.true_positives.sum(), counts.false_positives.sum(),
              counts.false_negatives.sum()};
  }
  const at::Tensor scores = scores_of(counts, score_.undefined_score);
  return score_.average == Average::binary ? scores[1] : scores;
}

}  // namespace linkboy
