// Compares the classification metrics with torchmetrics.
//
// Golden file: python tests/parity/classification_metrics_golden.py
//              tests/parity/classification_metrics_golden.jsonl

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <filesystem>
#include <fstream>
#include <limits>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <sstream>

#include "linkboy/metrics/accuracy.hpp"
#include "linkboy/metrics/cohen_kappa.hpp"
#include "linkboy/metrics/confusion_matrix.hpp"
#include "linkboy/metrics/dice.hpp"
#include "linkboy/metrics/f_beta.hpp"
#include "linkboy/metrics/iou.hpp"
#include "linkboy/metrics/matthews_corr_coef.hpp"
#include "linkboy/metrics/precision_score.hpp"
#include "linkboy/metrics/recall_score.hpp"
#include "support/python_peer.hpp"

namespace linkboy::testing::classification_metrics_golden_test {
namespace {

using Json = nlohmann::json;

const auto kFolder = std::filesystem::path(__FILE__).parent_path();

Average average_of(const Json& options) {
  static const std::map<std::string, Average> averages{{"micro", Average::micro},
                                                       {"macro", Average::macro},
                                                       {"weighted", Average::weighted},
                                                       {"none", Average::none},
                                                       {"binary", Average::binary}};
  return averages.at(options.value("average", "macro"));
}

Normalize normalize_of(const Json& options) {
  static const std::map<std::string, Normalize> kinds{{"none", Normalize::none},
                                                      {"labels", Normalize::labels},
                                                      {"predictions", Normalize::predictions},
                                                      {"all", Normalize::all}};
  return kinds.at(options.value("normalize", "none"));
}

KappaWeights weights_of(const Json& options) {
  static const std::map<std::string, KappaWeights> weights{{"none", KappaWeights::none},
                                                           {"linear", KappaWeights::linear},
                                                           {"quadratic", KappaWeights::quadratic}};
  return weights.at(options.value("weights", "none"));
}

/// Sets the options that all metrics have from the case.
template <class Options>
Options with_common(const Json& from, Options options) {
  if (from.contains("ignore_index")) options.ignore_index = from["ignore_index"].get<int64_t>();
  options.threshold = from.value("threshold", 0.5);
  return options;
}

template <class Kind>
std::unique_ptr<Metric> make_classification(const Json& from) {
  ClassificationOptions options{.num_classes = from["num_classes"], .average = average_of(from)};
  return std::make_unique<Kind>(with_common(from, options));
}

std::unique_ptr<Metric> make(const std::string& name, const Json& from) {
  if (name == "precision") return make_classification<PrecisionScore>(from);
  if (name == "recall") return make_classification<RecallScore>(from);
  if (name == "iou") return make_classification<IoU>(from);
  if (name == "dice") return make_classification<Dice>(from);
  if (name == "accuracy") {
    AccuracyOptions options{.num_classes = from["num_classes"],
                            .top_k = from.value("top_k", 1),
                            .average = average_of(from)};
    return std::make_unique<Accuracy>(with_common(from, options));
  }
  if (name == "f_beta") {
    FBetaOptions options{
        .num_classes = from["num_classes"], .beta = from["beta"], .average = average_of(from)};
    return std::make_unique<FBeta>(with_common(from, options));
  }
  if (name == "confusion_matrix") {
    ConfusionMatrixOptions options{.num_classes = from["num_classes"],
                                   .normalize = normalize_of(from)};
    return std::make_unique<ConfusionMatrix>(with_common(from, options));
  }
  if (name == "cohen_kappa") {
    CohenKappaOptions options{.num_classes = from["num_classes"], .weights = weights_of(from)};
    return std::make_unique<CohenKappa>(with_common(from, options));
  }
  if (name == "matthews_corr_coef") {
    return std::make_unique<MatthewsCorrCoef>(
        with_common(from, MatthewsCorrCoefOptions{.num_classes = from["num_classes"]}));
  }
  throw std::runtime_error("no metric " + name);
}

torch::Tensor tensor_of(const Json& json) {
  std::vector<double> values;
  for (const auto& value : json["values"]) {
    values.push_back(value.is_null() ? std::numeric_limits<double>::quiet_NaN()
                                     : value.get<double>());
  }
  const auto shape = json["shape"].get<std::vector<int64_t>>();
  const auto tensor = torch::tensor(values, torch::kDouble).view(shape);
  return json["is_float"].get<bool>() ? tensor : tensor.to(torch::kLong);
}

/// Checks all cases of `lines`. Returns the number of cases of each metric.
std::map<std::string, int> check(std::istream& lines) {
  std::map<std::string, Json> inputs;
  std::map<std::string, int> num_cases;
  for (std::string line; std::getline(lines, line);) {
    const auto golden = Json::parse(line);
    if (golden.contains("input")) inputs[golden["input"]] = golden["batches"];
    if (!golden.contains("metric")) continue;
    SCOPED_TRACE(line);
    const auto metric = make(golden["metric"], golden["options"]);
    for (const auto& batch : inputs.at(golden["of"])) {
      metric->update(tensor_of(batch["outputs"]), tensor_of(batch["targets"]));
    }
    const auto value = metric->compute();
    const auto expected = tensor_of(golden["expected"]).to(torch::kDouble);
    EXPECT_EQ(value.sizes(), expected.sizes());
    EXPECT_TRUE(torch::allclose(value, expected, /*rtol=*/0.0, golden["tolerance"].get<double>(),
                                /*equal_nan=*/true))
        << value << "\nbut torchmetrics has\n"
        << expected;
    ++num_cases[golden["metric"]];
  }
  return num_cases;
}

TEST(ClassificationMetricsGoldenTest, ValuesEqualTorchmetrics) {
  std::ifstream file(kFolder / "classification_metrics_golden.jsonl");
  const auto num_cases = check(file);
  EXPECT_EQ(num_cases.size(), 9U);
  for (const auto& [name, count] : num_cases) EXPECT_GT(count, 20) << name;
}

TEST(ClassificationMetricsGoldenTest, ValuesOfRandomInputsEqualTorchmetrics) {
  SKIP_WITHOUT_PYTHON();
  for (const char* seed : {"1", "2", "3"}) {
    SCOPED_TRACE(seed);
    const std::string text = run_python("classification_metrics_golden.py", {"--random", seed});
    SKIP_IF_MISSING(Json::parse(text.substr(0, text.find('\n'))));
    std::istringstream output(text);
    EXPECT_EQ(check(output).size(), 9U);
  }
}

}  // namespace
}  // namespace linkboy::testing::classification_metrics_golden_test
