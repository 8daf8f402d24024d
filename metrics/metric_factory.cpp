// The table of metrics that command lines and config files can create by name.

#include "linkboy/metrics/metric_factory.hpp"

#include "linkboy/metrics/accuracy.hpp"
#include "linkboy/metrics/auroc.hpp"
#include "linkboy/metrics/average_precision.hpp"
#include "linkboy/metrics/cohen_kappa.hpp"
#include "linkboy/metrics/confusion_matrix.hpp"
#include "linkboy/metrics/dice.hpp"
#include "linkboy/metrics/f_beta.hpp"
#include "linkboy/metrics/iou.hpp"
#include "linkboy/metrics/matthews_corr_coef.hpp"
#include "linkboy/metrics/mean_absolute_error.hpp"
#include "linkboy/metrics/mean_squared_error.hpp"
#include "linkboy/metrics/perplexity.hpp"
#include "linkboy/metrics/precision_score.hpp"
#include "linkboy/metrics/r2_score.hpp"
#include "linkboy/metrics/recall_score.hpp"
#include "linkboy/util/make.hpp"

namespace linkboy {
namespace {

using Metrics = NamedFactory<std::shared_ptr<Metric>>;

template <class M>
Metrics::Entry metric(const char* name, typename M::Options options) {
  return Metrics::entry<typename M::Options>(
      name, [](const typename M::Options& chosen) { return make<M>(chosen); }, std::move(options));
}

const Metrics& metrics() {
  static const Metrics all("metric",
                           {
                               metric<Accuracy>("accuracy", {.num_classes = 0}),
                               metric<AUROC>("auroc", {}),
                               metric<AveragePrecision>("average-precision", {}),
                               metric<CohenKappa>("cohen-kappa", {.num_classes = 0}),
                               metric<ConfusionMatrix>("confusion-matrix", {.num_classes = 0}),
                               metric<Dice>("dice", {.num_classes = 0}),
                               metric<FBeta>("f-beta", {.num_classes = 0}),
                               metric<IoU>("iou", {.num_classes = 0}),
                               metric<MatthewsCorrCoef>("matthews-corr-coef", {.num_classes = 0}),
                               metric<MeanAbsoluteError>("mean-absolute-error", {}),
                               metric<MeanSquaredError>("mean-squared-error", {}),
                               metric<Perplexity>("perplexity", {}),
                               metric<PrecisionScore>("precision", {.num_classes = 0}),
                               metric<R2Score>("r2-score", {}),
                               metric<RecallScore>("recall", {.num_classes = 0}),
                           });
  return all;
}

}  // namespace

std::shared_ptr<Metric> make_metric(const std::string& name, const TextSettings& settings) {
  return metrics().make(name, settings);
}

std::vector<std::string> metric_names() { return metrics().names(); }

TextSettings metric_options(const std::string& name) { return metrics().find(name).options; }

}  // namespace linkboy
