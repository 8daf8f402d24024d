// Tests of means, regression metrics and the perplexity with invalid and unusual inputs.
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

TEST(FunctionMetricTest, AveragesTheValuesOfAllBatches) {
  const auto metric = make<FunctionMetric>(
      [](const at::Tensor& output, const at::Tensor& target) { return (output - target).abs(); });
  EXPECT_TRUE(std::isnan(metric->compute().item<double>()));
  metric->update(torch::tensor({1.0, 4.0}), torch::tensor({0.0, 0.0}));
  metric->update(torch::tensor({1.0}), torch::tensor({8.0}));
  EXPECT_EQ(metric->compute().item<double>(), 4.0);
}

TEST(FunctionMetricTest, AcceptsALambdaThatReturnsBooleansOrAScalar) {
  const auto is_close =
      make<FunctionMetric>([](const at::Tensor& output, const at::Tensor& target) {
        return (output - target).abs().lt(0.5);
      });
  is_close->update(torch::tensor({1.0, 2.0, 3.0, 4.0}), torch::tensor({1.0, 2.0, 3.0, 5.0}));
  EXPECT_EQ(is_close->compute().item<double>(), 0.75);
  const auto largest = make<FunctionMetric>(
      [](const at::Tensor& output, const at::Tensor&) { return output.max(); });
  largest->update(torch::tensor({1.0, 2.0}), {});
  largest->update(torch::tensor({4.0}), {});
  EXPECT_EQ(largest->compute().item<double>(), 3.0);
}

TEST(FunctionMetricTest, NeedsAFunction) {
  EXPECT_ERROR(FunctionMetric(nullptr), "the function of the FunctionMetric is empty");
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

TEST(R2ScoreTest, IsNaNWithFewerThanTwoSamples) {
  R2Score r2;
  EXPECT_TRUE(std::isnan(r2.compute().item<double>()));
  r2.update(torch::ones({1}), torch::ones({1}));
  EXPECT_TRUE(std::isnan(r2.compute().item<double>()));
  r2.update(torch::ones({1}), torch::zeros({1}));
  EXPECT_EQ(r2.compute().item<double>(), -1.0);
  R2Score columns({.num_outputs = 2, .average = R2Average::none});
  EXPECT_EQ(columns.compute().sizes(), at::IntArrayRef({2}));
}

TEST(R2ScoreTest, DoesNotDependOnTheUnitOfTheTargets) {
  const auto targets = torch::tensor({1.0, 2.0, 4.0, 5.0}, torch::kDouble);
  const auto of_mean = torch::full_like(targets, 3.0);
  for (const double unit : {1e-12, 1e-3, 1.0, 1e12}) {
    R2Score good, mean;
    good.update(unit * (targets + 0.125), unit * targets);
    mean.update(unit * of_mean, unit * targets);
    EXPECT_NEAR(good.compute().item<double>(), 1.0 - 4 * 0.015625 / 10.0, 1e-12) << unit;
    EXPECT_NEAR(mean.compute().item<double>(), 0.0, 1e-12) << unit;
  }
}

TEST(R2ScoreTest, IsExactForLargeTargetsThatDifferLittle) {
  const auto distances = torch::tensor({-2.0, -1.0, 1.0, 2.0}, torch::kDouble);
  R2Score r2;
  for (int64_t i = 0; i < 4; ++i) {
    const auto target = distances.slice(0, i, i + 1) + 1e12;
    r2.update(target + 0.5, target);
  }
  EXPECT_NEAR(r2.compute().item<double>(), 0.9, 1e-3);
}

TEST(R2ScoreTest, ConstantTargetsHaveNoVarianceInAnyBatches) {
  // Three times 0.1, divided by 3, is not 0.1 in floating point.
  R2Score r2;
  for (int64_t rows : {1, 3, 7}) {
    r2.update(torch::full({rows}, 0.2, torch::kDouble), torch::full({rows}, 0.1, torch::kDouble));
    if (rows == 1) continue;
    EXPECT_EQ(r2.compute().item<double>(), 0.0);
  }
}

TEST(PerplexityTest, EqualsTheNumberOfClassesForEqualLogits) {
  Perplexity perplexity({.class_dim = 1, .ignore_index = -100});
  EXPECT_TRUE(std::isnan(perplexity.compute().item<double>()));
  perplexity.update(torch::zeros({2, 8, 3}), torch::full({2, 3}, -100));
  EXPECT_TRUE(std::isnan(perplexity.compute().item<double>()));
  perplexity.update(torch::zeros({2, 8, 3}), torch::full({2, 3}, 7));
  EXPECT_NEAR(perplexity.compute().item<double>(), 8.0, 1e-6);
}

TEST(PerplexityTest, RefusesLabelsThatAreNotClasses) {
  Perplexity perplexity({.ignore_index = -100});
  const auto logits = torch::zeros({2, 3, 8});
  EXPECT_ERROR(perplexity.update(logits, torch::tensor({{0, 1, 2}, {3, 8, 5}})),
               "Element 4 of the batch is 8");
  EXPECT_ERROR(perplexity.update(logits, torch::full({2, 3}, -1)), "or ignore_index (-100)");
  EXPECT_ERROR(perplexity.update(logits, torch::zeros({2, 3})), "the targets are Float");
  EXPECT_ERROR(perplexity.update(logits.to(torch::kLong), torch::zeros({2, 3}, torch::kLong)),
               "the outputs are Long");
  EXPECT_ERROR(perplexity.update(logits.to(torch::kMeta), torch::zeros({2, 3}, torch::kLong)),
               "the outputs are on meta, but the targets are on cpu");
}

TEST(PerplexityTest, RefusesShapesThatDoNotFit) {
  const auto labels = torch::zeros({2, 3}, torch::kLong);
  Perplexity last;
  EXPECT_ERROR(last.update(torch::zeros({2, 8, 3}), labels), "must be [2, 8]");
  EXPECT_ERROR(last.update(torch::zeros({2, 3, 0}), labels), "with no classes");
  EXPECT_ERROR(last.update(torch::zeros({}), labels), "class_dim is -1");
  EXPECT_ERROR(last.update({}, labels), "undefined");
  Perplexity third({.class_dim = 2});
  EXPECT_ERROR(third.update(torch::zeros({2, 3}), labels), "class_dim is 2");
}

TEST(PerplexityTest, CountsWrongLabelsOnADeviceUntilCompute_CUDA) {
  Perplexity perplexity;
  perplexity.update(torch::zeros({2, 8}).cuda(), torch::tensor({3, 9}).cuda());
  EXPECT_ERROR(perplexity.compute(), "1 values in batches on a device were out of range");
}

}  // namespace
}  // namespace linkboy::testing::regression_metrics_test
