// Tests of the Metric base class, and of the errors of classification metrics. tests/parity
// compares their values with torchmetrics, and metric_contract_test.cpp tests their batches, reset
// and state.

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <cmath>
#include <limits>

#include "linkboy/metrics.hpp"
#include "support/expect_error.hpp"

namespace linkboy::testing::classification_metrics_test {
namespace {

constexpr int64_t kNumClasses = 5;

struct Samples {
  torch::Tensor scores;
  torch::Tensor labels;
};

Samples samples(int64_t count) {
  torch::manual_seed(7);
  return {torch::rand({count, kNumClasses}), torch::randint(kNumClasses, {count}, torch::kLong)};
}

bool are_same(const torch::Tensor& a, const torch::Tensor& b) {
  return a.sizes() == b.sizes() && torch::allclose(a, b, 0.0, 0.0, /*equal_nan=*/true);
}

/// A metric that has a state of each kind of Merge, and a rule.
class EveryKind : public Metric {
 public:
  EveryKind() {
    add_state("sum", torch::zeros({}, torch::kDouble), Merge::sum);
    add_state("least", torch::full({}, 1e9, torch::kDouble), Merge::min);
    add_state("rows", torch::empty({0, 2}, torch::kDouble), Merge::concatenate);
    add_rule("values must be positive.");
  }

  void update(const at::Tensor& outputs, const at::Tensor& targets) override {
    follow(outputs);
    count_violations(0, outputs <= 0);
    state(0).add_(outputs.sum());
    state(1) = torch::minimum(state(1), outputs.min());
    append(2, torch::stack({outputs, targets}, 1));
  }

 protected:
  at::Tensor value_of(const std::vector<at::Tensor>& states) const override {
    return torch::cat({states[0].view({1}), states[1].view({1}), states[2].flatten()});
  }
};

TEST(MetricTest, EveryMergeKindIsSavedAndReset) {
  EveryKind metric;
  auto outputs = torch::tensor({3.0F, 2.0F});
  const auto targets = torch::tensor({5.0F, 6.0F});
  metric.update(outputs, targets);
  outputs.fill_(7.0);
  metric.update(outputs, targets);
  const auto expected = torch::tensor({19.0, 2.0, 3.0, 5.0, 2.0, 6.0, 7.0, 5.0, 7.0, 6.0});
  EXPECT_TRUE(are_same(metric.compute(), expected.to(torch::kDouble))) << metric.compute();

  EXPECT_EQ(metric.state_dict().get_tensor("rows").scalar_type(), torch::kDouble);

  EveryKind loaded;
  loaded.load_state_dict(metric.state_dict());
  EXPECT_TRUE(are_same(loaded.compute(), metric.compute()));
  metric.reset();
  EXPECT_EQ(metric.compute().numel(), 2);
  EXPECT_EQ(loaded.compute().numel(), 10);
}

TEST(MetricTest, ComputeThrowsForCountedViolationsUntilReset) {
  EveryKind metric;
  metric.update(torch::tensor({-1.0, 2.0, 0.0}), torch::ones({3}));
  EXPECT_ERROR(metric.compute(), "2 values in batches on a device were out of range: values must");
  EveryKind loaded;
  loaded.load_state_dict(metric.state_dict());
  EXPECT_ERROR(loaded.compute(), "2 values");
  metric.reset();
  EXPECT_NO_THROW((void)metric.compute());
}

TEST(MetricTest, ARefusedStateChangesNothing) {
  const auto all = samples(8);
  Accuracy accuracy({.num_classes = kNumClasses});
  accuracy.update(all.scores, all.labels);
  const auto value = accuracy.compute();
  Accuracy wider({.num_classes = 6});
  EXPECT_ERROR(accuracy.load_state_dict(wider.state_dict()), "\"true_positives\" is Long[6]");
  EXPECT_ERROR(accuracy.load_state_dict(ConfusionMatrix({.num_classes = 5}).state_dict()),
               "there is no \"true_positives\"");
  auto state = accuracy.state_dict();
  state.set("false_negatives", torch::zeros({5}));
  EXPECT_ERROR(accuracy.load_state_dict(state), "\"false_negatives\" is Float[5]");
  state = Accuracy({.num_classes = 5}).state_dict();
  state.set("more", 1);
  EXPECT_ERROR(accuracy.load_state_dict(state), "the state has \"more\"");
  state.erase("more");
  state.erase("violations");
  EXPECT_ERROR(accuracy.load_state_dict(state), "there is no \"violations\"");
  EveryKind rows;
  auto of_rows = rows.state_dict();
  of_rows.set("rows", torch::zeros({4, 3}, torch::kDouble));
  EXPECT_ERROR(rows.load_state_dict(of_rows), "\"rows\" is Double[4, 3]");
  EXPECT_TRUE(are_same(accuracy.compute(), value));
}

TEST(ClassificationMetricsTest, ErrorsNameALabelOutOfRange) {
  Accuracy accuracy({.num_classes = 10});
  const auto scores = torch::rand({3, 10});
  const auto labels = [](int64_t odd) { return torch::tensor(std::vector<int64_t>{1, 2, odd}); };
  EXPECT_ERROR(accuracy.update(scores, labels(12)),
               "a label of the targets is 12, but num_classes is 10; labels must lie in [0, 9]. ");
  EXPECT_ERROR(accuracy.update(scores, labels(-100)), "a label of the targets is -100");
  EXPECT_ERROR(accuracy.update(labels(10), labels(9)), "a class index of the outputs is 10");
  EXPECT_ERROR(accuracy.update(labels(-1), labels(9)), "a class index of the outputs is -1");
}

TEST(ClassificationMetricsTest, ErrorsNameShapesAndDtypesThatDoNotFit) {
  Accuracy accuracy({.num_classes = 10});
  const auto labels = torch::zeros({3}, torch::kLong);
  EXPECT_ERROR(accuracy.update(torch::rand({3, 9}), labels),
               "the outputs are Float[3, 9] and the targets [3], with 10 classes; for "
               "targets [N, ...] the outputs must be scores [N, 10, ...]");
  EXPECT_ERROR(accuracy.update(torch::rand({4, 10}), labels), "Float[4, 10]");
  EXPECT_ERROR(accuracy.update(torch::rand({3, 10, 2}), labels), "Float[3, 10, 2]");
  EXPECT_ERROR(accuracy.update(torch::rand({3}), labels), "Float[3] ");
  EXPECT_ERROR(accuracy.update(torch::zeros({2}, torch::kLong), labels), "Long[2]");
  EXPECT_ERROR(accuracy.update(torch::zeros({3, 10}, torch::kLong), labels), "Long[3, 10]");
  EXPECT_ERROR(accuracy.update(torch::zeros({3, 10}, torch::kComplexFloat), labels), "Complex");
  EXPECT_ERROR(accuracy.update(torch::rand({3, 10}), torch::zeros({3})),
               "the targets are Float[3]; they must be class indexes");
  EXPECT_ERROR(accuracy.update(torch::rand({10}), torch::tensor(1)), "no dimension 0");
  EXPECT_ERROR(accuracy.update(torch::rand({3, 10}).to(torch::kMeta), labels),
               "the outputs are on meta, but the targets are on cpu");
  Accuracy binary({.num_classes = 2});
  EXPECT_ERROR(binary.update(torch::rand({3, 1, 1}), labels), "or scores [N, ...] of class 1");
  Accuracy top_2({.num_classes = 2, .top_k = 2});
  EXPECT_ERROR(top_2.update(torch::rand({3}), labels), "top_k needs floating-point scores [N, 2");
}

TEST(ClassificationMetricsTest, RefusesOptionsOutOfRange) {
  EXPECT_ERROR(Accuracy({.num_classes = 1}), "num_classes is 1; it must be at least 2");
  EXPECT_ERROR(ConfusionMatrix({.num_classes = 0}), "num_classes is 0");
  EXPECT_ERROR(CohenKappa({.num_classes = -3}), "num_classes is -3");
  EXPECT_ERROR(MatthewsCorrCoef({.num_classes = 1}), "num_classes is 1");
  EXPECT_ERROR(Accuracy({.num_classes = 5, .top_k = 6}),
               "top_k is 6, but num_classes is 5; it must lie in [1, 5]");
  EXPECT_ERROR(Accuracy({.num_classes = 5, .top_k = 0}), "top_k is 0");
  EXPECT_ERROR(PrecisionScore({.num_classes = 3, .average = Average::binary}),
               "average is binary, but num_classes is 3");
  const double nan = std::numeric_limits<double>::quiet_NaN();
  EXPECT_ERROR(RecallScore({.num_classes = 2, .threshold = nan}), "threshold is NaN");
  EXPECT_ERROR(IoU({.num_classes = 1}), "num_classes is 1");
  EXPECT_ERROR(Dice({.num_classes = 1}), "num_classes is 1");
  for (const double beta : {0.0, -1.0, nan, std::numeric_limits<double>::infinity()}) {
    EXPECT_ERROR(FBeta({.num_classes = 3, .beta = beta}), "beta is ");
  }
}

TEST(ClassificationMetricsTest, TopKCountsTheFirstOfEqualScores) {
  for (const int64_t top_k : {1, 2, 3}) {
    Accuracy accuracy({.num_classes = 40, .top_k = top_k, .average = Average::none});
    accuracy.update(torch::zeros({40, 40}), torch::arange(40));
    const auto expected = torch::arange(40).lt(top_k).to(torch::kDouble);
    EXPECT_TRUE(torch::equal(accuracy.compute(), expected)) << accuracy.compute();
  }
}

TEST(ClassificationMetricsTest, AcceptsAllIntegerLabelsAndAllFloatingPointScores) {
  const auto all = samples(9);
  Accuracy expected({.num_classes = kNumClasses});
  const auto scores = all.scores.argsort(/*dim=*/1, /*descending=*/false).to(torch::kFloat);
  expected.update(scores, all.labels);
  for (const auto dtype : {torch::kHalf, torch::kBFloat16, torch::kDouble}) {
    for (const auto labels : {torch::kByte, torch::kInt, torch::kShort}) {
      Accuracy accuracy({.num_classes = kNumClasses});
      accuracy.update(scores.to(dtype), all.labels.to(labels));
      EXPECT_TRUE(are_same(accuracy.compute(), expected.compute())) << dtype << labels;
    }
  }
}

TEST(ClassificationMetricsTest, AnIgnoredClassIsLeftOutOfDice) {
  // Three pixels are counted. Class 0 has one pixel, which is predicted correctly, and one false
  // positive.
  Dice dice({.num_classes = 3, .average = Average::none, .ignore_index = 2});
  dice.update(torch::tensor({0, 0, 2, 1}), torch::tensor({0, 1, 1, 2}));
  const auto value = dice.compute();
  EXPECT_EQ(value[0].item<double>(), 2.0 / 3.0);
  EXPECT_EQ(value[1].item<double>(), 0.0);
  EXPECT_TRUE(std::isnan(value[2].item<double>()));
}

}  // namespace
}  // namespace linkboy::testing::classification_metrics_test
