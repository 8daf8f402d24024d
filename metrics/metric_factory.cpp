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
