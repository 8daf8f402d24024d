// What MeanMetric, the regression metrics, Perplexity, AUROC and AveragePrecision refuse, keep and
// forget. Their values are held to torchmetrics' in
// parity/regression_metrics_golden_test.cpp.

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <cmath>
#include <functional>
#include <limits>
#include <memory>
#include <vector>

#include "linkboy/metrics/auroc.hpp"
#include "linkboy/metrics/average_precision.hpp"
#include "linkboy/metrics/mean.hpp"
#include "linkboy/metrics/mean_absolute_error.hpp"
#include "linkboy/metrics/mean_squared_error.hpp"
#include "linkboy/metrics/perplexity.hpp"
#include "linkboy/metrics/r2_score.hpp"
#include "support/expect_error.hpp"

namespace linkboy::testing::regression_metrics_test {
namespace {

constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();

/// A metric and batches that fit it.
struct Kind {
  const char* name;
  std::function<std::unique_ptr<Metric>()> make;
  std::function<torch::Tensor(int64_t rows)> outputs;
  std::function<torch::Tensor(int64_t rows)> targets;
  /// What `update` refuses, in place of the outputs.
  torch::Tensor bad_outputs;
};

void PrintTo(const Kind& kind, std::ostream* stream) { *stream << kind.name; }

// Multiples of 1/8, whose sums and squares are exact in any order.
torch::Tensor eighths(int64_t rows) { return (torch::arange(rows) * 5 % 8).to(torch::kFloat) / 8; }
torch::Tensor halves(int64_t rows) { return (torch::arange(rows) * 3 % 4).to(torch::kFloat) / 2; }
torch::Tensor bits(int64_t rows) { return torch::arange(rows) * 3 % 4 % 2; }
torch::Tensor labels(int64_t rows) { return torch::arange(rows) * 2 % 3; }
torch::Tensor scores(int64_t rows) {
  return torch::stack({eighths(rows), halves(rows) / 2, eighths(rows).flip(0)}, 1);
}

std::vector<Kind> kinds() {
  const auto bad = torch::zeros({3, 5}, torch::kFloat);
  return {
      {"MeanMetric", [] { return std::make_unique<MeanMetric>(); }, eighths, halves,
       torch::zeros({3, 5}, torch::kComplexFloat)},
      {"MeanSquaredError", [] { return std::make_unique<MeanSquaredError>(); }, eighths, halves,
       bad},
      {"MeanAbsoluteError", [] { return std::make_unique<MeanAbsoluteError>(); }, eighths, halves,
       bad},
      {"R2Score", [] { return std::make_unique<R2Score>(); }, eighths, halves, bad},
      {"Perplexity", [] { return std::make_unique<Perplexity>(); }, scores, labels,
       torch::zeros({3})},
      {"AUROC", [] { return std::make_unique<AUROC>(); }, eighths, bits, bad},
      {"BinnedAUROC", [] { return std::make_unique<AUROC>(RankingCurveOptions{.thresholds = 5}); },
       eighths, bits, bad},
      {"MulticlassAUROC",
       [] { return std::make_unique<AUROC>(RankingCurveOptions{.num_classes = 3}); }, scores,
       labels, bad},
      {"AveragePrecision", [] { return std::make_unique<AveragePrecision>(); }, eighths, bits, bad},
      {"BinnedMulticlassAveragePrecision",
       [] {
         return std::make_unique<AveragePrecision>(
             RankingCurveOptions{.num_classes = 3, .thresholds = 5});
       },
       scores, labels, bad},
  };
}

class EveryMetricTest : public ::testing::TestWithParam<Kind> {
 protected:
  void update(Metric& metric, int64_t first, int64_t end) const {
    metric.update(outputs_.slice(0, first, end), targets_.slice(0, first, end));
  }

  const torch::Tensor outputs_ = GetParam().outputs(20);
  const torch::Tensor targets_ = GetParam().targets(20);
  const std::unique_ptr<Metric> metric_ = GetParam().make();
};

INSTANTIATE_TEST_SUITE_P(Metrics, EveryMetricTest, ::testing::ValuesIn(kinds()),
                         [](const auto& info) { return info.param.name; });

TEST_P(EveryMetricTest, ManyBatchesAreOneBatch) {
  update(*metric_, 0, 20);
  const auto parts = GetParam().make();
  for (const auto& [first, end] : {std::pair{0, 7}, {7, 7}, {7, 8}, {8, 20}}) {
    update(*parts, first, end);
  }
  const auto value = metric_->compute();
  EXPECT_TRUE(torch::isfinite(value).all().item<bool>());
  EXPECT_TRUE(torch::allclose(parts->compute(), value, 1e-14, 0.0)) << parts->compute();
}

TEST_P(EveryMetricTest, ResetForgetsAllBatches) {
  update(*metric_, 0, 9);
  metric_->reset();
  update(*metric_, 9, 20);
  const auto fresh = GetParam().make();
  update(*fresh, 9, 20);
  EXPECT_TRUE(torch::equal(metric_->compute(), fresh->compute()));
}

TEST_P(EveryMetricTest, StateGoesOnInAnotherMetric) {
  update(*metric_, 0, 9);
  const auto other = GetParam().make();
  update(*other, 3, 7);  // which the state replaces
  other->load_state_dict(metric_->state_dict());
  update(*other, 9, 20);
  update(*metric_, 9, 20);
  EXPECT_TRUE(torch::equal(other->compute(), metric_->compute()));
}

TEST_P(EveryMetricTest, RefusedBatchLeavesItAsItWas) {
  update(*metric_, 0, 20);
  const auto before = metric_->state_dict();
  EXPECT_ERROR(metric_->update(GetParam().bad_outputs, targets_.slice(0, 0, 3)), ": the ");
  const auto after = metric_->state_dict();
  ASSERT_EQ(after.size(), before.size());
  for (const auto& [name, value] : before.entries()) {
    EXPECT_TRUE(torch::equal(after.get_tensor(name), value.toTensor())) << name;
  }
}

TEST_P(EveryMetricTest, KeepsNoGradientsAndNoMemoryOfTheBatch) {
  auto outputs = outputs_.clone().requires_grad_();
  auto targets = targets_.clone();
  metric_->update(outputs * 1, targets);
  for (const auto& [name, value] : metric_->state_dict().entries()) {
    EXPECT_FALSE(value.toTensor().requires_grad()) << name;
  }
  const auto value = metric_->compute();
  const torch::NoGradGuard no_grad;
  auto reused = outputs_.to(torch::kDouble).clone();
  const auto other = GetParam().make();
  other->update(reused, targets);
  const auto before = other->compute();
  reused.zero_();
  targets.zero_();
  EXPECT_TRUE(torch::equal(other->compute(), before));
  EXPECT_TRUE(torch::allclose(value, before, 1e-6));
}

// A loop, since the name of a parameterised test does not end in _CUDA.
TEST(EveryMetricOnADeviceTest, BatchesThereGiveTheSame_CUDA) {
  for (const auto& kind : kinds()) {
    SCOPED_TRACE(kind.name);
    const auto outputs = kind.outputs(20);
    const auto targets = kind.targets(20);
    const auto here = kind.make();
    here->update(outputs, targets);
    const auto there = kind.make();
    there->update(outputs.slice(0, 0, 9).cuda(), targets.slice(0, 0, 9).cuda());
    there->update(outputs.slice(0, 9).cuda(), targets.slice(0, 9).cuda());
    EXPECT_TRUE(torch::allclose(there->compute(), here->compute(), 1e-6));
  }
}

TEST(MeanMetricTest, WeighsValues) {
  MeanMetric mean;
  EXPECT_TRUE(std::isnan(mean.compute().item<double>()));
  mean.update(torch::tensor({1.0, 2.0}));
  mean.update(torch::tensor(6.0), torch::tensor(2));
  EXPECT_EQ(mean.compute().item<double>(), 15.0 / 4.0);
}

TEST(MeanMetricTest, PassesNaNOnUnlessToldToLeaveItOut) {
  MeanMetric strict;
  MeanMetric lenient({.ignore_nan = true});
  for (Metric* mean : {static_cast<Metric*>(&strict), static_cast<Metric*>(&lenient)}) {
    mean->update(torch::tensor({1.0, kNaN, 5.0, 3.0}), torch::tensor({1.0, 1.0, kNaN, 1.0}));
  }
  EXPECT_TRUE(std::isnan(strict.compute().item<double>()));
  EXPECT_EQ(lenient.compute().item<double>(), 2.0);
}

TEST(MeanMetricTest, RefusesWeightsThatDoNotBroadcast) {
  MeanMetric mean;
  EXPECT_ERROR(mean.update(torch::ones({2, 3}), torch::ones({2})),
               "the weights are [2], but the values [2, 3]");
  EXPECT_ERROR(mean.update(torch::ones({3}), torch::ones({2, 3})), "must broadcast");
  EXPECT_ERROR(mean.update(torch::ones({3}), torch::ones({3}, torch::kComplexFloat)),
               "the weights are ComplexFloat");
  EXPECT_ERROR(mean.update(torch::Tensor()), "the values are undefined");
}

TEST(RegressionMetricsTest, RefuseShapesThatDiffer) {
  MeanSquaredError squared;
  MeanAbsoluteError absolute;
  R2Score r2;
  for (Metric* metric : {static_cast<Metric*>(&squared), static_cast<Metric*>(&absolute),
                         static_cast<Metric*>(&r2)}) {
    EXPECT_ERROR(metric->update(torch::ones({4, 1}), torch::ones({4})),
                 "the outputs are [4, 1], but the targets [4]");
    EXPECT_ERROR(metric->update(torch::ones({4}, torch::kComplexFloat), torch::ones({4})),
                 "the outputs are ComplexFloat");
    EXPECT_ERROR(metric->update(torch::ones({4}), {}), "undefined");
  }
}

TEST(RegressionMetricsTest, RefuseAnotherNumberOfOutputs) {
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

TEST(RegressionMetricsTest, ErrorsOfNothingAreNaN) {
  EXPECT_TRUE(std::isnan(MeanSquaredError({.squared = false}).compute().item<double>()));
  EXPECT_TRUE(MeanAbsoluteError({.num_outputs = 2}).compute().isnan().all().item<bool>());
}

TEST(RegressionMetricsTest, IntegersCountAsTheirValues) {
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

TEST(PerplexityTest, OfEqualLogitsIsTheNumberOfClasses) {
  Perplexity perplexity({.class_dim = 1, .ignore_index = -100});
  EXPECT_TRUE(std::isnan(perplexity.compute().item<double>()));
  perplexity.update(torch::zeros({2, 8, 3}), torch::full({2, 3}, -100));
  EXPECT_TRUE(std::isnan(perplexity.compute().item<double>()));
  perplexity.update(torch::zeros({2, 8, 3}), torch::full({2, 3}, 7));
  EXPECT_NEAR(perplexity.compute().item<double>(), 8.0, 1e-6);
}

TEST(PerplexityTest, RefusesWhatIsNoClass) {
  Perplexity perplexity({.ignore_index = -100});
  const auto logits = torch::zeros({2, 3, 8});
  EXPECT_ERROR(perplexity.update(logits, torch::tensor({{0, 1, 2}, {3, 8, 5}})),
               "Element 4 of the batch is 8");
  EXPECT_ERROR(perplexity.update(logits, torch::full({2, 3}, -1)), "or ignore_index (-100)");
  EXPECT_ERROR(perplexity.update(logits, torch::zeros({2, 3})), "the targets are Float");
  EXPECT_ERROR(perplexity.update(logits.to(torch::kLong), torch::zeros({2, 3}, torch::kLong)),
               "the outputs are Long");
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

/// Both, with the same options.
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
                 "For scores of several classes set num_classes");
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

TEST(RankingMetricsTest, TakeScoresOfTwoClassesAsAColumnToo) {
  for_both({}, [](Metric& metric) {
    metric.update(torch::tensor({{0.1}, {0.2}}), torch::tensor({0, 1}));
    EXPECT_EQ(metric.compute().item<double>(), 1.0);
    EXPECT_ERROR(metric.update(torch::zeros({3, 1}), torch::zeros({4}, torch::kLong)),
                 "the outputs are [3, 1], but the targets [4]");
  });
}

TEST(RankingMetricsTest, OfNothingAreNaN) {
  for_both({}, [](Metric& metric) { EXPECT_TRUE(std::isnan(metric.compute().item<double>())); });
  for_both({.num_classes = 3, .average = RankingAverage::none, .thresholds = 5},
           [](Metric& metric) {
             const auto value = metric.compute();
             EXPECT_EQ(value.numel(), 3);
             EXPECT_TRUE(value.isnan().all().item<bool>());
           });
}

TEST(RankingMetricsTest, FindWrongValuesOnADeviceInCompute_CUDA) {
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
  // The probabilities of the largest ones would be, in bfloat16.
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
}  // namespace linkboy::testing::regression_metrics_test
