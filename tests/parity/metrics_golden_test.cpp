// Compares the metrics with torchmetrics and, in corner cases, with scikit-learn.
//
// Golden files: in tests/parity, for X = classification_metrics, regression_metrics and
//               sklearn_metrics: python X_golden.py X_golden.jsonl

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <map>
#include <memory>

#include "linkboy/metrics/mean.hpp"
#include "linkboy/metrics/metric_factory.hpp"
#include "parity/golden.hpp"

namespace linkboy::testing::metrics_golden_test {
namespace {

using parity::Json;

torch::Tensor to_tensor(const Json& value) {
  if (value.is_null()) return {};
  static const std::map<std::string, at::ScalarType> dtypes{{"int64", torch::kLong},
                                                            {"float32", torch::kFloat},
                                                            {"bfloat16", torch::kBFloat16},
                                                            {"float64", torch::kDouble}};
  return parity::tensor_of(value["data"], dtypes.at(value["dtype"]))
      .reshape(value["shape"].get<std::vector<int64_t>>());
}

std::shared_ptr<Metric> make(const std::string& name, const Json& options) {
  if (name == "mean") {
    return std::make_shared<MeanMetric>(MeanMetricOptions{.ignore_nan = options["ignore_nan"]});
  }
  TextSettings settings;
  for (const auto& [key, value] : options.items()) {
    settings.emplace_back(key, value.is_string() ? value.get<std::string>() : value.dump());
  }
  return make_metric(name, settings);
}

/// Checks each case of a golden file and returns the number of cases of each metric and seed.
std::map<std::pair<std::string, int>, int> check(const std::vector<Json>& lines) {
  std::map<std::pair<std::string, int>, int> num_cases;
  for (const auto& group : lines) {
    if (!group.contains("cases")) continue;  // the versions
    const int seed = group.value("seed", 0);
    for (const auto& golden : group["cases"]) {
      SCOPED_TRACE(c10::str(golden.dump(), ", ", group["title"], ", seed ", seed));
      const auto metric = make(golden["metric"], golden["options"]);
      for (const auto& batch : group["batches"]) {
        metric->update(to_tensor(batch["outputs"]), to_tensor(batch["targets"]));
      }
      const auto value = metric->compute();
      const auto expected = to_tensor(golden["value"]);
      EXPECT_EQ(value.sizes(), expected.sizes());
      EXPECT_TRUE(torch::allclose(value, expected, 1e-12, golden["tolerance"].get<double>(),
                                  /*equal_nan=*/true))
          << value << "\nbut Python has\n"
          << expected;
      ++num_cases[{golden["metric"], seed}];
    }
  }
  return num_cases;
}

/// Checks all cases of a golden file.
void check_golden(const char* name, const char* package, const char* version, int num_cases) {
  const auto lines = parity::golden_lines(name);
  ASSERT_EQ(lines.at(0)[package], version);
  int sum = 0;
  for (const auto& [metric, count] : check(lines)) sum += count;
  EXPECT_EQ(sum, num_cases);
}

/// Checks the cases that Python computes for three seeds.
void check_random(const char* name, std::size_t num_metrics) {
  SKIP_WITHOUT_PYTHON();
  const auto lines = parity::lines_from_python(name, {"--random", "1", "2", "3"});
  SKIP_IF_MISSING(lines.at(0));
  EXPECT_EQ(check(lines).size(), 3 * num_metrics);
}

TEST(MetricsGoldenTest, ValuesEqualTorchmetrics) {
  check_golden("classification_metrics", "torchmetrics", "1.9.0", 1019);
  check_golden("regression_metrics", "torchmetrics", "1.9.0", 516);
}

TEST(MetricsGoldenTest, ValuesInCornerCasesEqualScikitLearn) {
  check_golden("sklearn_metrics", "sklearn", "1.9.1", 1740);
}

TEST(MetricsGoldenTest, ValuesOfRandomInputsEqualTorchmetrics) {
  check_random("classification_metrics", 9);
  check_random("regression_metrics", 7);
}

TEST(MetricsGoldenTest, ValuesOfRandomInputsInCornerCasesEqualScikitLearn) {
  check_random("sklearn_metrics", 15);
}

}  // namespace
}  // namespace linkboy::testing::metrics_golden_test
