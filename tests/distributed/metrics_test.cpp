// Metrics over several ranks with unevenly split batches are bit-identical to those of one process
// that has seen all batches.

#include "linkboy/metrics/metric.hpp"

#include "distributed/ranks.hpp"
#include "linkboy/metrics/accuracy.hpp"
#include "linkboy/metrics/cohen_kappa.hpp"
#include "linkboy/metrics/confusion_matrix.hpp"
#include "linkboy/metrics/dice.hpp"
#include "linkboy/metrics/matthews_corr_coef.hpp"
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
    EXPECT_NO_THROW(metric.compute());
  }
}

}  // namespace
}  // namespace linkboy::testing::metrics_test
