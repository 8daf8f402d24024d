// In any split of the rows, metrics over several processes equal those of one process that has seen
// all rows.

#include <cmath>

#include "distributed/ranks.hpp"
#include "linkboy/metrics/auroc.hpp"
#include "linkboy/metrics/average_precision.hpp"
#include "linkboy/metrics/mean.hpp"
#include "linkboy/metrics/metric_collection.hpp"
#include "linkboy/metrics/perplexity.hpp"
#include "linkboy/metrics/r2_score.hpp"
#include "support/expect_error.hpp"

namespace linkboy::testing::ranking_metrics_test {
namespace {

constexpr int64_t kRows = 97;

/// Scores in [0, 1] with ties. Scores and labels are the same on all ranks.
torch::Tensor scores(int64_t columns = 1) {
  const auto grid = torch::arange(kRows * columns) * 37 % 61;
  return grid.to(torch::kDouble).reshape({kRows, columns}) / 60;
}
torch::Tensor labels(int64_t num_classes) { return torch::arange(kRows) * 29 % 31 % num_classes; }

class DistributedRankingMetricsTest : public GroupTest {
 protected:
  /// Updates with this rank's rows. Higher ranks have more rows. If there are several
  /// ranks, rank 0 does not have any.
  void update(Metric& metric, const torch::Tensor& outputs, const torch::Tensor& targets) const {
    const auto end_of = [&](int64_t r) { return kRows * r * r / ((size - 1) * (size - 1)); };
    const int64_t first = rank == 0 ? 0 : end_of(rank - 1);
    const int64_t end = size == 1 ? kRows : end_of(rank);
    if (first == end) return;
    const auto middle = first + (end - first) / 3;
    metric.update(outputs.slice(0, first, middle), targets.slice(0, first, middle));
    metric.update(outputs.slice(0, middle, end), targets.slice(0, middle, end));
  }

  template <class Kind, class Options>
  void expect_value_of_one_process(Options options, const torch::Tensor& outputs,
                                   const torch::Tensor& targets) const {
    Kind whole(options);
    whole.update(outputs, targets);
    Kind part(options);
    update(part, outputs, targets);
    const auto value = part.compute(group);
    EXPECT_TRUE(torch::equal(value, whole.compute())) << value << " is not " << whole.compute();
  }
};

const std::optional<int64_t> kThresholds[] = {std::nullopt, 11};

TEST_F(DistributedRankingMetricsTest, BinaryValuesEqualOneProcess) {
  for (const auto& thresholds : kThresholds) {
    const RankingCurveOptions options{.thresholds = thresholds};
    expect_value_of_one_process<AUROC>(options, scores(1).flatten(), labels(2));
    expect_value_of_one_process<AveragePrecision>(options, scores(1).flatten(), labels(2));
  }
}

TEST_F(DistributedRankingMetricsTest, MulticlassValuesEqualOneProcess) {
  for (const auto& thresholds : kThresholds) {
    for (const auto average :
         {RankingAverage::macro, RankingAverage::weighted, RankingAverage::none}) {
      const RankingCurveOptions options{
          .num_classes = 4, .average = average, .thresholds = thresholds};
      expect_value_of_one_process<AUROC>(options, scores(4), labels(4));
      expect_value_of_one_process<AveragePrecision>(options, scores(4).to(torch::kFloat),
                                                    labels(4));
    }
  }
}

TEST_F(DistributedRankingMetricsTest, R2OfExactSumsEqualsOneProcess) {
  const auto targets = torch::stack({labels(7), labels(5)}, 1).to(torch::kFloat) / 8;
  const auto outputs = targets + torch::stack({labels(3), labels(2)}, 1) / 4.0;
  for (const auto average : {R2Average::uniform, R2Average::variance_weighted, R2Average::none}) {
    expect_value_of_one_process<R2Score>(R2ScoreOptions{.num_outputs = 2, .average = average},
                                         outputs, targets);
  }
}

TEST_F(DistributedRankingMetricsTest, MeansAndPerplexityEqualOneProcess) {
  const auto weights = labels(5).to(torch::kFloat);
  expect_value_of_one_process<MeanMetric>(MeanMetricOptions{}, labels(7).to(torch::kFloat) / 16,
                                          weights);
  Perplexity whole, part;
  whole.update(scores(4), labels(4));
  update(part, scores(4), labels(4));
  EXPECT_TRUE(torch::allclose(part.compute(group), whole.compute(), 1e-14, 0.0));
}

TEST_F(DistributedRankingMetricsTest, RestoredStatesAreMerged) {
  AUROC whole, part, restored;
  whole.update(scores().flatten(), labels(2));
  update(part, scores().flatten(), labels(2));
  restored.load_state_dict(part.state_dict());
  EXPECT_TRUE(torch::equal(restored.compute(group), whole.compute()));
}

TEST_F(DistributedRankingMetricsTest, AreNaNWithoutSamplesOnAnyRank) {
  EXPECT_TRUE(std::isnan(AUROC().compute(group).item<double>()));
  EXPECT_TRUE(std::isnan(AveragePrecision({.thresholds = 3}).compute(group).item<double>()));
}

TEST_F(DistributedRankingMetricsTest, TooFewSamplesAreAnErrorOnAllRanks) {
  R2Score r2;
  if (rank == size - 1) r2.update(torch::ones({1}), torch::ones({1}));
  EXPECT_ERROR(r2.compute(group), "it has seen 1 samples");
}

TEST_F(DistributedRankingMetricsTest, CollectionMergesEachMetric) {
  const auto make_metrics = [] {
    return MetricCollection{{"auroc", std::make_shared<AUROC>()},
                            {"binned", make<AUROC>({.thresholds = 11})}};
  };
  auto whole = make_metrics();
  whole.update(scores().flatten(), labels(2));
  auto part = make_metrics();
  for (const auto& [name, metric] : part.metrics()) update(*metric, scores().flatten(), labels(2));
  const auto values = part.compute(group);
  const auto expected = whole.compute();
  ASSERT_EQ(values.size(), 2U);
  for (std::size_t i = 0; i < 2; ++i) {
    EXPECT_EQ(values[i].first, expected[i].first);
    EXPECT_TRUE(torch::equal(values[i].second, expected[i].second)) << values[i].first;
  }
}

}  // namespace
}  // namespace linkboy::testing::ranking_metrics_test
