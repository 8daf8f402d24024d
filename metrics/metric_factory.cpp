// The table of metrics that command lines and config files can create by name.

#include "linkboy/metrics/metric_factory.hpp"

#include "linkboy/metrics/classification.hpp"
#include "linkboy/metrics/perplexity.hpp"
#include "linkboy/metrics/ranking.hpp"
#include "linkboy/metrics/regression.hpp"
#include "linkboy/util/make.hpp"

namespace linkboy {
namespace {

using Metrics = NamedFactory<std::shared_ptr<Metric>>;

}  // namespace

const Metrics& metric_factory() {
  static const Metrics all(
      "metric", {
                    Metrics::of<Accuracy>("accuracy", {.num_classes = 0}),
                    Metrics::of<AUROC>("auroc"),
                    Metrics::of<AveragePrecision>("average-precision"),
                    Metrics::of<CohenKappa>("cohen-kappa", {.num_classes = 0}),
                    Metrics::of<ConfusionMatrix>("confusion-matrix", {.num_classes = 0}),
                    Metrics::of<Dice>("dice", {.num_classes = 0}),
                    Metrics::of<FBeta>("f-beta", {.num_classes = 0}),
                    Metrics::of<IoU>("iou", {.num_classes = 0}),
                    Metrics::of<MatthewsCorrCoef>("matthews-corr-coef", {.num_classes = 0}),
                    Metrics::of<MeanAbsoluteError>("mean-absolute-error"),
                    Metrics::of<MeanSquaredError>("mean-squared-error"),
                    Metrics::of<Perplexity>("perplexity"),
                    Metrics::of<PrecisionScore>("precision", {.num_classes = 0}),
                    Metrics::of<R2Score>("r2-score"),
                    Metrics::of<RecallScore>("recall", {.num_classes = 0}),
                });
  return all;
}

}  // namespace linkboy
