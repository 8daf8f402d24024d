// Tests of AUROC and AveragePrecision with invalid and unusual inputs.
// parity/metrics_golden_test.cpp compares their values with torchmetrics.

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <cmath>

#include "linkboy/metrics/ranking.hpp"
#include "support/expect_error.hpp"
#include "unit/metrics/metric_inputs.hpp"

namespace linkboy::testing::ranking_metrics_test {
namespace {

/// Calls `check` with both metrics, which have the same options.
template <class Check>
void for_both(RankingCurveOptions options, Check check) {
  AUROC auroc(options);
  AveragePrecision average_precision(options);
  check(auroc);
  check(average_precision);
}

TEST(RankingMetricsTest, RefuseOptionsOutOfRange) {
  EXPECT_ERROR(AUROC({.thresholds = 1}), "AUROC: thresholds is 1; it must be at least 2");
  EXPECT_ERROR(AveragePrecision({.thresholds = 0}), "AveragePrecision: thresholds is 0");
  EXPECT_ERROR(AUROC({.num_classes = 1}), "num_classes is 1; it must be at least 2");
  EXPECT_ERROR(AveragePrecision({.num_classes = 0}), "num_classes is 0");
}

TEST(RankingMetricsTest, RefuseTargetsOutOfRange) {
  for (const auto& thresholds : {std::optional<int64_t>(), std::optional<int64_t>(5)}) {
    for_both({.thresholds = thresholds}, [](Metric& metric) {
      EXPECT_ERROR(metric.update(torch::zeros({3}), torch::tensor({0, 1, 2})),
                   "targets must be 0 or 1. Element 2 of the batch is 2");
      EXPECT_ERROR(metric.update(torch::zeros({1}), torch::tensor({-1})), "is -1");
      EXPECT_TRUE(std::isnan(metric.compute().item<double>()));
    });
    for_both({.num_classes = 3, .thresholds = thresholds}, [](Metric& metric) {
      EXPECT_ERROR(metric.update(torch::zeros({2, 3}), torch::tensor({0, 3})),
                   "targets must lie in [0, 2]. Element 1 of the batch is 3");
    });
  }
}

TEST(RankingMetricsTest, RefuseScoresThatCannotBeRanked) {
  for_both({}, [](Metric& metric) {
    EXPECT_ERROR(metric.update(torch::tensor({0.5, kNaN}), torch::tensor({0, 1})),
                 "scores must not be NaN");
  });
  for_both({.thresholds = 5}, [](Metric& metric) {
    EXPECT_ERROR(metric.update(torch::tensor({0.5, 1.5}), torch::tensor({0, 1})),
                 "set from_logits if they are logits. Element 1 of the batch is 1.5");
    EXPECT_ERROR(metric.update(torch::tensor({0.5, kNaN}), torch::tensor({0, 1})), "in [0, 1]");
  });
  for_both({.thresholds = 5, .from_logits = true}, [](Metric& metric) {
    metric.update(torch::tensor({-3.0, 1.5}), torch::tensor({0, 1}));
    EXPECT_EQ(metric.compute().item<double>(), 1.0);
  });
}

TEST(RankingMetricsTest, RefuseShapesAndDtypesThatDoNotFit) {
  for_both({}, [](Metric& metric) {
    EXPECT_ERROR(metric.update(torch::zeros({3, 2}), torch::zeros({3}, torch::kLong)),
                 "For scores of several classes, set num_classes");
    EXPECT_ERROR(metric.update(torch::zeros({3}), torch::zeros({3})), "the targets are Float");
    EXPECT_ERROR(metric.update(torch::zeros({3}, torch::kLong), torch::zeros({3}, torch::kLong)),
                 "the outputs are Long");
    EXPECT_ERROR(metric.update({}, torch::zeros({3}, torch::kLong)), "undefined");
    metric.update(torch::tensor({0.1, 0.2}), torch::tensor({false, true}));
    EXPECT_EQ(metric.compute().item<double>(), 1.0);
  });
  for_both({.num_classes = 3}, [](Metric& metric) {
    EXPECT_ERROR(metric.update(torch::zeros({4, 2}), torch::zeros({4}, torch::kLong)),
                 "the outputs are [4, 2] and the targets [4], but num_classes is 3");
    EXPECT_ERROR(metric.update(torch::zeros({3}), torch::zeros({}, torch::kLong)), "[N, 3, ...]");
  });
}

TEST(RankingMetricsTest, AcceptScoresOfTwoClassesAsAColumn) {
  for_both({}, [](Metric& metric) {
    metric.update(torch::tensor({{0.1}, {0.2}}), torch::tensor({0, 1}));
    EXPECT_EQ(metric.compute().item<double>(), 1.0);
    EXPECT_ERROR(metric.update(torch::zeros({3, 1}), torch::zeros({4}, torch::kLong)),
                 "the outputs are [3, 1], but the targets are [4]");
  });
}

TEST(RankingMetricsTest, AreNaNWithoutSamples) {
  for_both({}, [](Metric& metric) { EXPECT_TRUE(std::isnan(metric.compute().item<double>())); });
  for_both({.num_classes = 3, .average = RankingAverage::none, .thresholds = 5},
           [](Metric& metric) {
             const auto value = metric.compute();
             EXPECT_EQ(value.numel(), 3);
             EXPECT_TRUE(value.isnan().all().item<bool>());
           });
}

TEST(RankingMetricsTest, AClassWithoutBothKindsOfSamplesHasNoAUROCAndAnAveragePrecisionOf0) {
  const auto scores = torch::tensor({{0.8, 0.2, 0.0}, {0.3, 0.6, 0.1}, {0.5, 0.25, 0.25}});
  const auto absent = torch::tensor({0, 1, 1});
  const auto single = torch::tensor({0, 0, 0});
  for (const auto& thresholds : {std::optional<int64_t>(), std::optional<int64_t>(101)}) {
    const auto values = [&](Metric&& metric, const torch::Tensor& targets) {
      metric.update(scores, targets);
      return metric.compute();
    };
    const auto options = [&](RankingAverage average) {
      return RankingCurveOptions{.num_classes = 3, .average = average, .thresholds = thresholds};
    };
    const auto auroc = values(AUROC(options(RankingAverage::none)), absent);
    EXPECT_EQ(auroc[0].item<double>(), 1.0);
    EXPECT_EQ(auroc[1].item<double>(), 1.0);
    EXPECT_TRUE(std::isnan(auroc[2].item<double>()));
    for (const auto average : {RankingAverage::macro, RankingAverage::weighted}) {
      EXPECT_EQ(values(AUROC(options(average)), absent).item<double>(), 1.0);
      EXPECT_TRUE(std::isnan(values(AUROC(options(average)), single).item<double>()));
    }
    const auto precision = values(AveragePrecision(options(RankingAverage::none)), absent);
    EXPECT_EQ(precision[2].item<double>(), 0.0);
    EXPECT_DOUBLE_EQ(
        values(AveragePrecision(options(RankingAverage::macro)), absent).item<double>(), 2.0 / 3.0);
  }
}

TEST(RankingMetricsTest, ReportInvalidValuesOnADeviceInCompute_CUDA) {
  for (const auto& thresholds : {std::optional<int64_t>(), std::optional<int64_t>(5)}) {
    for_both({.thresholds = thresholds}, [](Metric& metric) {
      metric.update(torch::tensor({0.5, 0.1}).cuda(), torch::tensor({0, 7}).cuda());
      EXPECT_ERROR(metric.compute(), "targets must be 0 or 1");
      metric.reset();
      metric.update(torch::tensor({kNaN, 0.1}).cuda(), torch::tensor({0, 1}).cuda());
      EXPECT_ERROR(metric.compute(), "1 values in batches on a device were out of range");
    });
  }
}

TEST(RankingCurveTest, AreasOfBillionsOfSamplesDoNotOverflow) {
  AUROC small({.thresholds = 3});
  small.update(torch::tensor({0.1, 0.6, 0.7, 0.9}), torch::tensor({0, 1, 0, 1}));
  StateDict state = small.state_dict();
  state.set("counts", state.get_tensor("counts") * 4'000'000'000);
  AUROC large({.thresholds = 3});
  large.load_state_dict(state);
  EXPECT_DOUBLE_EQ(large.compute().item<double>(), small.compute().item<double>());
}

TEST(RankingCurveTest, LogitsInHalfPrecisionAreNotTies) {
  // In bfloat16, the probabilities of the largest logits would be equal.
  const auto logits = torch::arange(-8.0, 8.0, 0.5);
  const auto targets = torch::arange(32) % 3 == 0;
  for (const auto dtype : {torch::kBFloat16, torch::kHalf, torch::kFloat}) {
    AUROC raw;
    AUROC from_logits({.from_logits = true});
    raw.update(logits.to(dtype), targets);
    from_logits.update(logits.to(dtype), targets);
    EXPECT_EQ(from_logits.compute().item<double>(), raw.compute().item<double>());
  }
  const auto scores = torch::stack({logits, -logits, torch::zeros(32)}, 1).to(torch::kBFloat16);
  AUROC of_halves({.num_classes = 3, .from_logits = true});
  AUROC of_floats({.num_classes = 3, .from_logits = true});
  of_halves.update(scores, targets.to(torch::kLong));
  of_floats.update(scores.to(torch::kFloat), targets.to(torch::kLong));
  EXPECT_EQ(of_halves.compute().item<double>(), of_floats.compute().item<double>());
}

}  // namespace
}  // namespace linkboy::testing::ranking_metrics_test
