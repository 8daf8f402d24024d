#include "linkboy/metric.hpp"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <cmath>
#include <memory>

#include "linkboy/metrics.hpp"
#include "support/expect_error.hpp"

namespace linkboy::testing::metric_collection_test {
namespace {

MetricCollection two_metrics() {
  return {{"squared", std::make_shared<MeanSquaredError>()},
          {"absolute", std::make_shared<MeanAbsoluteError>()}};
}

/// Returns two metrics that have seen a batch with the errors 0 and 4.
MetricCollection two_updated_metrics() {
  auto metrics = two_metrics();
  metrics.update(torch::tensor({1.0, 5.0}), torch::tensor({1.0, 1.0}));
  return metrics;
}

TEST(MetricCollectionTest, ComputesEachByNameInOrder) {
  auto metrics = two_updated_metrics();
  const auto values = metrics.compute();
  ASSERT_EQ(values.size(), 2U);
  EXPECT_EQ(values[0].first, "squared");
  EXPECT_EQ(values[0].second.item<double>(), 8.0);
  EXPECT_EQ(values[1].first, "absolute");
  EXPECT_EQ(values[1].second.item<double>(), 2.0);
  EXPECT_EQ(metrics["absolute"].compute().item<double>(), 2.0);
  metrics.reset();
  EXPECT_TRUE(std::isnan(metrics["squared"].compute().item<double>()));
}

TEST(MetricCollectionTest, RefusesEmptyAndDuplicateNamesAndNull) {
  auto metrics = two_metrics();
  EXPECT_ERROR(metrics.add("absolute", std::make_shared<R2Score>()),
               "there is already a metric \"absolute\" (the names are: squared, absolute)");
  EXPECT_ERROR(metrics.add("", std::make_shared<R2Score>()), "the name of a metric is empty");
  EXPECT_ERROR(metrics.add("r2", nullptr), "\"r2\" is null");
  EXPECT_ERROR(metrics["r2"], "there is no metric \"r2\"; there are: squared, absolute.");
  EXPECT_EQ(metrics.metrics().size(), 2U);
}

/// A metric whose value cannot be computed.
class NeverDefined : public MeanMetric {
 protected:
  at::Tensor value_of(const std::vector<at::Tensor>& /*states*/) const override {
    throw Error("it has no value.");
  }
};

TEST(MetricCollectionTest, ErrorsNameTheMetric) {
  MetricCollection metrics{{"fit", std::make_shared<R2Score>()}};
  EXPECT_ERROR(metrics.update(torch::ones({2}), torch::ones({3})), "metric \"fit\": R2Score: the");
  metrics.add("never", std::make_shared<NeverDefined>());
  EXPECT_ERROR(metrics.compute(), "metric \"never\": it has no value");
}

TEST(MetricCollectionTest, StateIsNestedByName) {
  auto metrics = two_updated_metrics();
  const auto state = metrics.state_dict();
  EXPECT_EQ(state.get_dict("absolute").get_tensor("sum").item<double>(), 4.0);
  auto others = two_metrics();
  others.load_state_dict(state);
  EXPECT_EQ(others["squared"].compute().item<double>(), 8.0);
}

TEST(MetricCollectionTest, AStateThatDoesNotFitChangesNothing) {
  auto metrics = two_updated_metrics();
  auto state = two_metrics().state_dict();
  state.set("absolute", StateDict{{"sum", 1.0}});
  EXPECT_ERROR(metrics.load_state_dict(state), "metric \"absolute\": ");
  EXPECT_EQ(metrics["squared"].compute().item<double>(), 8.0);
  state.erase("absolute");
  EXPECT_ERROR(metrics.load_state_dict(state), "absolute");
  EXPECT_EQ(metrics["squared"].compute().item<double>(), 8.0);
}

}  // namespace
}  // namespace linkboy::testing::metric_collection_test
