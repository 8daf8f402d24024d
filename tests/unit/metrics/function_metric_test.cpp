#include "linkboy/metrics/mean.hpp"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <cmath>

#include "support/expect_error.hpp"

namespace linkboy::testing::function_metric_test {
namespace {

at::Tensor distance(const at::Tensor& output, const at::Tensor& target) {
  return (output - target).abs();
}

TEST(FunctionMetricTest, AveragesTheValuesOfAllBatches) {
  const auto metric = make<FunctionMetric>(distance);
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

}  // namespace
}  // namespace linkboy::testing::function_metric_test
