// Compares the regression, perplexity and ranking metrics with torchmetrics.
//
// In tests/parity: python regression_metrics_golden.py regression_metrics_golden.jsonl

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <cmath>
#include <fstream>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <sstream>

#include "linkboy/metrics/auroc.hpp"
#include "linkboy/metrics/average_precision.hpp"
#include "linkboy/metrics/mean.hpp"
#include "linkboy/metrics/mean_absolute_error.hpp"
#include "linkboy/metrics/mean_squared_error.hpp"
#include "linkboy/metrics/perplexity.hpp"
#include "linkboy/metrics/r2_score.hpp"
#include "support/python_peer.hpp"

namespace linkboy::testing::regression_metrics_golden_test {
namespace {

using Json = nlohmann::json;

/// The number of cases that the script makes for each seed.
constexpr std::size_t kNumCases = 717;

const std::filesystem::path kFolder = std::filesystem::path(__FILE__).parent_path();

std::vector<Json> read_lines(std::istream& stream) {
  std::vector<Json> lines;
  std::string line;
  while (std::getline(stream, line)) lines.push_back(Json::parse(line));
  return lines;
}

torch::Tensor to_tensor(const Json& value) {
  if (value.is_null()) return {};
  std::vector<double> data;
  for (const auto& element : value["data"]) {
    data.push_back(element.is_string() ? std::stod(element.get<std::string>())
                                       : element.get<double>());
  }
  const std::string name = value["dtype"];
  const auto dtype = name == "int64"      ? torch::kLong
                     : name == "float32"  ? torch::kFloat
                     : name == "bfloat16" ? torch::kBFloat16
                                          : torch::kDouble;
  return torch::tensor(data, torch::kDouble)
      .reshape(value["shape"].get<std::vector<int64_t>>())
      .to(dtype);
}

std::optional<int64_t> optional_int(const Json& options, const char* key) {
  if (!options.contains(key)) return std::nullopt;
  return options[key].get<int64_t>();
}

RankingCurveOptions ranking_options(const Json& options) {
  const std::string average = options.value("average", "macro");
  return {.num_classes = optional_int(options, "num_classes"),
          .average = average == "macro"      ? RankingAverage::macro
                     : average == "weighted" ? RankingAverage::weighted
                                             : RankingAverage::none,
          .thresholds = optional_int(options, "thresholds"),
          .from_logits = options["from_logits"]};
}

R2ScoreOptions r2_options(const Json& options) {
  const std::string average = options["average"];
  return {.num_outputs = options["num_outputs"],
          .average = average == "uniform"             ? R2Average::uniform
                     : average == "variance_weighted" ? R2Average::variance_weighted
                                                      : R2Average::none,
          .adjusted = options["adjusted"]};
}

std::unique_ptr<Metric> make_metric(const Json& golden) {
  const std::string name = golden["metric"];
  const Json& options = golden["options"];
  if (name == "MeanMetric") {
    return std::make_unique<MeanMetric>(MeanMetricOptions{.ignore_nan = options["ignore_nan"]});
  }
  if (name == "MeanSquaredError") {
    return std::make_unique<MeanSquaredError>(MeanSquaredErrorOptions{
        .squared = options["squared"], .num_outputs = options["num_outputs"]});
  }
  if (name == "MeanAbsoluteError") {
    return std::make_unique<MeanAbsoluteError>(
        MeanAbsoluteErrorOptions{.num_outputs = options["num_outputs"]});
  }
  if (name == "R2Score") return std::make_unique<R2Score>(r2_options(options));
  if (name == "Perplexity") {
    return std::make_unique<Perplexity>(PerplexityOptions{
        .class_dim = options["class_dim"], .ignore_index = optional_int(options, "ignore_index")});
  }
  if (name == "AUROC") return std::make_unique<AUROC>(ranking_options(options));
  if (name == "AveragePrecision") {
    return std::make_unique<AveragePrecision>(ranking_options(options));
  }
  throw std::runtime_error("no metric " + name);
}

/// Returns the number of cases.
std::size_t expect_same_values(const Json& group) {
  std::vector<std::pair<torch::Tensor, torch::Tensor>> batches;
  for (const auto& batch : group["batches"]) {
    batches.emplace_back(to_tensor(batch["outputs"]), to_tensor(batch["targets"]));
  }
  for (const auto& golden : group["cases"]) {
    SCOPED_TRACE(golden["metric"].get<std::string>() + " " + golden["options"].dump() + ", " +
                 group["title"].get<std::string>());
    const auto metric = make_metric(golden);
    for (const auto& [outputs, targets] : batches) metric->update(outputs, targets);
    const auto value = metric->compute();
    const auto expected = to_tensor(golden["value"]);
    EXPECT_EQ(value.sizes(), expected.sizes());
    EXPECT_TRUE(torch::allclose(value, expected, 1e-12, 1e-12, /*equal_nan=*/true))
        << value << "\n is not " << expected;
  }
  return group["cases"].size();
}

TEST(RegressionMetricsGoldenTest, EveryValueEqualsTorchmetrics) {
  std::ifstream file(kFolder / "regression_metrics_golden.jsonl");
  auto lines = read_lines(file);
  ASSERT_EQ(lines.at(0)["torchmetrics"], "1.9.0");
  lines.erase(lines.begin());
  std::size_t num_cases = 0;
  for (const auto& group : lines) num_cases += expect_same_values(group);
  EXPECT_EQ(num_cases, kNumCases);
}

TEST(RegressionMetricsGoldenTest, RandomInputsGiveTheSameValuesAsTorchmetrics) {
  SKIP_WITHOUT_PYTHON();
  for (const auto* seed : {"1", "2"}) {
    SCOPED_TRACE("seed " + std::string(seed));
    std::istringstream output(run_python("regression_metrics_golden.py", {"--random", seed}));
    auto lines = read_lines(output);
    ASSERT_FALSE(lines.empty());
    if (lines[0].contains("unavailable")) {
      LINKBOY_SKIP("that Python has no torchmetrics: " +
                   lines[0]["unavailable"].get<std::string>());
    }
    lines.erase(lines.begin());
    std::size_t num_cases = 0;
    for (const auto& group : lines) num_cases += expect_same_values(group);
    EXPECT_EQ(num_cases, kNumCases);
  }
}

}  // namespace
}  // namespace linkboy::testing::regression_metrics_golden_test
