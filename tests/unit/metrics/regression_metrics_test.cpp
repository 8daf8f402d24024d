// Tests of MeanMetric and the regression metrics with invalid and unusual inputs.
// parity/metrics_golden_test.cpp compares their values with torchmetrics.

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <cmath>

#include "linkboy/metrics.hpp"
#include "support/expect_error.hpp"
#include "unit/metrics/metric_inputs.hpp"

namespace linkboy::testing::regression_metrics_test {
namespace {

TEST(MeanMetricTest, WeightsValues) {
  MeanMetric mean;
  EXPECT_TRUE(std::isnan(mean.compute().item<double>()));
  mean.update(torch::tensor({1.0, 2.0}));
  mean.update(torch::tensor(6.0), torch::tensor(2));
  EXPECT_EQ(mean.compute().item<double>(), 15.0 / 4.0);
}

TEST(MeanMetricTest, PropagatesNaNUnlessItIsIgnored) {
  const auto mean = [](bool ignore_nan) {
    MeanMetric metric({.ignore_nan = ignore_nan});
    metric.update(torch::tensor({1.0, kNaN, 5.0, 3.0}), torch::tensor({1.0, 1.0, kNaN, 1.0}));
    return metric.compute().item<double>();
  };
  EXPECT_TRUE(std::isnan(mean(false)));
  EXPECT_EQ(mean(true), 2.0);
}

TEST(MeanMetricTest, RefusesWeightsThatDoNotBroadcast) {
  MeanMetric mean;
  EXPECT_ERROR(mean.update(torch::ones({2, 3}), torch::ones({2})),
               "the weights are [2], but the values are [2, 3]");
  EXPECT_ERROR(mean.update(torch::ones({3}), torch::ones({2, 3})), "must broadcast");
  EXPECT_ERROR(mean.update(torch::ones({3}), torch::ones({3}, torch::kComplexFloat)),
               "the weights are ComplexFloat");
  EXPECT_ERROR(mean.update(torch::Tensor()), "the values are undefined");
}

TEST(RegressionMetricsTest, RefuseShapesThatDiffer) {
  for (const std::string name : {"mean-squared-error", "mean-absolute-error", "r2-score"}) {
    SCOPED_TRACE(name);
    const auto metric = make_metric(name);
    EXPECT_ERROR(metric->update(torch::ones({4, 1}), torch::ones({4})),
                 "the outputs are [4, 1], but the targets are [4]");
    EXPECT_ERROR(metric->update(torch::ones({4}, torch::kComplexFloat), torch::ones({4})),
                 "the outputs are ComplexFloat");
    EXPECT_ERROR(metric->update(torch::ones({4}), {}), "undefined");
  }
}

TEST(RegressionMetricsTest, RefuseAWrongNumberOfOutputs) {
  MeanSquaredError squared({.num_outputs = 3});
  EXPECT_ERROR(squared.update(torch::ones({4, 2}), torch::ones({4, 2})),
               "MeanSquaredError: outputs and targets are [4, 2], but num_outputs is 3");
  MeanAbsoluteError absolute({.num_outputs = 3});
  EXPECT_ERROR(absolute.update(torch::ones({3}), torch::ones({3})), "they must be [N, 3]");
  R2Score r2;
  EXPECT_ERROR(r2.update(torch::ones({4, 2}), torch::ones({4, 2})), "they must be [N] or [N, 1]");
  EXPECT_ERROR(r2.update(torch::ones({}), torch::ones({})), "they must be [N] or [N, 1]");
  EXPECT_ERROR(MeanSquaredError({.num_outputs = 0}), "num_outputs is 0");
  EXPECT_ERROR(MeanAbsoluteError({.num_outputs = -1}), "num_outputs is -1");
  EXPECT_ERROR(R2Score({.num_outputs = 0}), "num_outputs is 0");
  EXPECT_ERROR(R2Score({.adjusted = -1}), "adjusted is -1");
}

TEST(RegressionMetricsTest, AreNaNWithoutSamples) {
  EXPECT_TRUE(std::isnan(MeanSquaredError({.squared = false}).compute().item<double>()));
  EXPECT_TRUE(MeanAbsoluteError({.num_outputs = 2}).compute().isnan().all().item<bool>());
}

TEST(RegressionMetricsTest, AcceptIntegers) {
  MeanSquaredError squared;
  squared.update(torch::tensor({200, 3}, torch::kByte), torch::tensor({100, 3}, torch::kByte));
  EXPECT_EQ(squared.compute().item<double>(), 5000.0);
}

TEST(R2ScoreTest, NeedsTwoSamples) {
  R2Score r2;
  EXPECT_ERROR(r2.compute(), "it has seen 0 samples");
  r2.update(torch::ones({1}), torch::ones({1}));
  EXPECT_ERROR(r2.compute(), "it has seen 1 samples; R2 needs at least 2");
  r2.update(torch::ones({1}), torch::zeros({1}));
  EXPECT_EQ(r2.compute().item<double>(), -1.0);
}

}  // namespace
}  // namespace linkboy::testing::regression_metrics_test
