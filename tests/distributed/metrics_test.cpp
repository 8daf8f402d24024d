// Metrics over several ranks with unevenly split batches are bit-identical to those of one process
// that has seen all batches.

#include "linkboy/metric.hpp"

#include "distributed/ranks.hpp"
#include "linkboy/metrics/classification.hpp"
#include "linkboy/metrics/mean.hpp"
#include "linkboy/metrics/perplexity.hpp"
#include "linkboy/metrics/ranking.hpp"
#include "linkboy/metrics/regression.hpp"
#include "support/expect_error.hpp"

namespace linkboy::testing::metrics_test {
namespace {

constexpr int64_t kNumClasses = 7;
constexpr int64_t kNumBatches = 11;

std::pair<torch::Tensor, torch::Tensor> batch_number(int64_t batch) {
  torch::manual_seed(static_cast<uint64_t>(batch));
  return {torch::rand({3 + batch % 4, kNumClasses}),
          torch::randint(kNumClasses, {3 + batch % 4}, torch::kLong)};
}

class MetricsTest : public GroupTest {
 protected:
  /// Returns the rank that gets the batch. Rank 0 gets most of them; the last of several ranks gets
  /// none.
  int64_t owner_of(int64_t batch) const {
    const int64_t num_owners = std::max<int64_t>(size - 1, 1);
    return batch < kNumBatches / 2 ? 0 : batch % num_owners;
  }

  /// Expects that the metric has the same value on all ranks as in one process that sees all
  /// batches.
  template <class Kind, class... Options>
  void expect_same_in_any_split(const Options&... options) const {
    Kind metric(options...);
    Kind of_all(options...);
    for (int64_t batch = 0; batch < kNumBatches; ++batch) {
      const auto [outputs, targets] = batch_number(batch);
      of_all.update(outputs, targets);
      if (owner_of(batch) == rank) metric.update(outputs, targets);
    }
    const auto value = metric.compute(group);
    const auto expected = of_all.compute();
    EXPECT_TRUE(torch::equal(value, expected)) << value << expected;
    EXPECT_TRUE(torch::equal(metric.compute(group), value)) << "compute changed the state";
  }
};

/// A metric whose value is its only state.
class StateMetric : public Metric {
 protected:
  at::Tensor value_of(const std::vector<at::Tensor>& states) const override { return states[0]; }
};

/// The minimum or maximum score of each class.
class Extremes : public StateMetric {
 public:
  explicit Extremes(bool is_max) : is_max_(is_max) {
    const double none = is_max ? -1e300 : 1e300;
    add_state("extremes", torch::full({kNumClasses}, none, torch::kDouble),
              is_max ? Merge::max : Merge::min);
  }

  void update(const at::Tensor& outputs, const at::Tensor&) override {
    follow(outputs);
    const auto scores = outputs.to(torch::kDouble);
    state(0) = is_max_ ? torch::maximum(state(0), scores.amax(0))
                       : torch::minimum(state(0), scores.amin(0));
  }

 private:
  bool is_max_;
};

/// All rows with their labels, sorted by score. The row shape is known only from the batches.
class SortedRows : public Metric {
 public:
  SortedRows() {
    add_state("rows", torch::empty({0}, torch::kFloat), Merge::concatenate);
    add_state("labels", torch::empty({0}, torch::kLong), Merge::concatenate);
  }

  void update(const at::Tensor& outputs, const at::Tensor& targets) override {
    follow(outputs);
    append(0, outputs);
    append(1, targets);
  }

 protected:
  at::Tensor value_of(const std::vector<at::Tensor>& states) const override {
    if (states[0].dim() < 2) return states[0];
    const auto order = states[0].select(1, 0).argsort();
    return torch::cat(
        {states[0].index_select(0, order), states[1].index_select(0, order).unsqueeze(1)}, 1);
  }
};

/// The rank that each row comes from.
class RowOwners : public StateMetric {
 public:
  RowOwners() { add_state("ranks", torch::empty({0}, torch::kLong), Merge::concatenate); }
  void update(const at::Tensor& ranks, const at::Tensor&) override { append(0, ranks); }
};

/// Counts violations in the same way as for batches on a device.
class CountsNegatives : public StateMetric {
 public:
  CountsNegatives() {
    add_state("sum", torch::zeros({}, torch::kLong), Merge::sum);
    add_rule("values must not be negative.");
  }
  void update(const at::Tensor& outputs, const at::Tensor&) override {
    count_violations(0, outputs < 0);
  }
};

TEST_F(MetricsTest, CountsOfAllRanksAddUp) {
  expect_same_in_any_split<Accuracy>(AccuracyOptions{.num_classes = kNumClasses, .top_k = 2});
  expect_same_in_any_split<Accuracy>(
      AccuracyOptions{.num_classes = kNumClasses, .average = Average::none});
  expect_same_in_any_split<ConfusionMatrix>(ConfusionMatrixOptions{.num_classes = kNumClasses});
  expect_same_in_any_split<CohenKappa>(CohenKappaOptions{.num_classes = kNumClasses});
  expect_same_in_any_split<MatthewsCorrCoef>(MatthewsCorrCoefOptions{.num_classes = kNumClasses});
  expect_same_in_any_split<Dice>(ClassificationOptions{.num_classes = kNumClasses});
}

TEST_F(MetricsTest, MinimumAndMaximumCoverAllRanks) {
  expect_same_in_any_split<Extremes>(false);
  expect_same_in_any_split<Extremes>(true);
}

TEST_F(MetricsTest, UnevenRowsOfAllRanksAreConcatenated) { expect_same_in_any_split<SortedRows>(); }

TEST_F(MetricsTest, RowsAreInRankOrder) {
  RowOwners metric;
  if (rank != 1) metric.update(torch::full({rank + 1}, rank, torch::kLong), {});
  std::vector<int64_t> expected;
  for (int64_t r = 0; r < size; ++r) {
    for (int64_t i = 0; i <= r && r != 1; ++i) expected.push_back(r);
  }
  EXPECT_TRUE(torch::equal(metric.compute(group), torch::tensor(expected, torch::kDouble)));
}

TEST_F(MetricsTest, RanksWithoutBatchesShareTheValue) {
  EXPECT_EQ(Accuracy({.num_classes = 3}).compute(group).item<double>(), 0.0);
  EXPECT_EQ(SortedRows().compute(group).numel(), 0);
}

TEST_F(MetricsTest, AViolationOnOneRankIsAnErrorOnAll) {
  CountsNegatives metric;
  if (rank == size - 1) metric.update(torch::tensor({1, -2, -3}), {});
  EXPECT_ERROR(metric.compute(group), "2 values in batches on a device were out of range");
  metric.reset();
  EXPECT_EQ(metric.compute(group).item<double>(), 0.0);
}

TEST_F(MetricsTest, ARankWithoutAGroupHasItsOwnValue) {
  CountsNegatives metric;
  if (rank == 0) {
    metric.update(torch::tensor({-1}), {});
    EXPECT_ERROR(metric.compute(), "1 values");
  } else {
    EXPECT_NO_THROW((void)metric.compute());
  }
}

// ---- Rankings, means and R2 --------------------------------------------------------------------

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
                                   const torch::Tensor& targets, double tolerance = 0.0) const {
    Kind whole(options);
    whole.update(outputs, targets);
    Kind part(options);
    update(part, outputs, targets);
    const auto value = part.compute(group);
    EXPECT_TRUE(torch::allclose(value, whole.compute(), tolerance, 0.0))
        << value << " is not " << whole.compute();
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

TEST_F(DistributedRankingMetricsTest, R2EqualsOneProcess) {
  const auto targets = torch::stack({labels(7), labels(5)}, 1).to(torch::kFloat) / 8;
  const auto outputs = targets + torch::stack({labels(3), labels(2)}, 1) / 4.0;
  for (const auto average : {R2Average::uniform, R2Average::variance_weighted, R2Average::none}) {
    expect_value_of_one_process<R2Score>(R2ScoreOptions{.num_outputs = 2, .average = average},
                                         outputs, targets, 1e-13);
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

TEST_F(DistributedRankingMetricsTest, R2OfASingleSampleIsNaNOnAllRanks) {
  R2Score r2;
  if (rank == size - 1) r2.update(torch::ones({1}), torch::ones({1}));
  EXPECT_TRUE(std::isnan(r2.compute(group).item<double>()));
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
}  // namespace linkboy::testing::metrics_test
