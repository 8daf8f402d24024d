// Tests that apply to every metric: batches, reset and state.

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <cmath>
#include <functional>
#include <memory>
#include <vector>

#include "linkboy/metrics.hpp"
#include "support/expect_error.hpp"
#include "unit/metrics/metric_inputs.hpp"

namespace linkboy::testing::metric_contract_test {
namespace {

using Make = std::function<std::unique_ptr<Metric>()>;
using Rows = std::function<torch::Tensor(int64_t rows)>;

/// A metric and suitable batches.
struct Kind {
  const char* name;
  Make make;
  Rows outputs;
  Rows targets;
  /// Three rows that `update` refuses. If there are no targets, the outputs are wrong.
  torch::Tensor bad_outputs = torch::zeros({3, 5});
  torch::Tensor bad_targets{};
  const char* refusal = ": the ";
  /// Whether the metric counts classes, so that its values are exact and it can report wrong labels
  /// on a device.
  bool counts_classes = false;
};

void PrintTo(const Kind& kind, std::ostream* stream) { *stream << kind.name; }

template <class M, class... Options>
Make maker(const Options&... options) {
  return [=] { return std::make_unique<M>(options...); };
}

Kind kind_of_classes(const char* name, Make make) {
  // No two scores are equal, and each class occurs.
  const Rows outputs = [](int64_t rows) {
    torch::manual_seed(7);
    return torch::rand({rows, 5});
  };
  const Rows targets = [](int64_t rows) { return torch::arange(rows) * 2 % 5; };
  return {.name = name,
          .make = std::move(make),
          .outputs = outputs,
          .targets = targets,
          .bad_outputs = outputs(3),
          .bad_targets = torch::tensor({0, 5, 1}),
          .refusal = "a label of the targets is 5",
          .counts_classes = true};
}

std::vector<Kind> kinds() {
  const ClassificationOptions five{.num_classes = 5};
  const RankingCurveOptions three{.num_classes = 3};
  const RankingCurveOptions binned{.thresholds = 5};
  const RankingCurveOptions binned_three{.num_classes = 3, .thresholds = 5};
  return {
      {"MeanMetric", maker<MeanMetric>(), eighths, halves,
       torch::zeros({3, 5}, torch::kComplexFloat)},
      {"MeanSquaredError", maker<MeanSquaredError>(), eighths, halves},
      {"MeanAbsoluteError", maker<MeanAbsoluteError>(), eighths, halves},
      {"R2Score", maker<R2Score>(), eighths, halves},
      {"Perplexity", maker<Perplexity>(), scores, labels, torch::zeros({3})},
      {"AUROC", maker<AUROC>(), eighths, bits},
      {"BinnedAUROC", maker<AUROC>(binned), eighths, bits},
      {"MulticlassAUROC", maker<AUROC>(three), scores, labels},
      {"AveragePrecision", maker<AveragePrecision>(), eighths, bits},
      {"BinnedMulticlassAveragePrecision", maker<AveragePrecision>(binned_three), scores, labels},
      kind_of_classes("Accuracy", maker<Accuracy>(AccuracyOptions{.num_classes = 5})),
      kind_of_classes("Top2Accuracy", maker<Accuracy>(AccuracyOptions{
                                          .num_classes = 5, .top_k = 2, .average = Average::none})),
      kind_of_classes("PrecisionScore", maker<PrecisionScore>(five)),
      kind_of_classes("RecallScore", maker<RecallScore>(five)),
      kind_of_classes("FBeta", maker<FBeta>(FBetaOptions{.num_classes = 5})),
      kind_of_classes("ConfusionMatrix",
                      maker<ConfusionMatrix>(ConfusionMatrixOptions{.num_classes = 5})),
      kind_of_classes("CohenKappa", maker<CohenKappa>(CohenKappaOptions{.num_classes = 5})),
      kind_of_classes("MatthewsCorrCoef",
                      maker<MatthewsCorrCoef>(MatthewsCorrCoefOptions{.num_classes = 5})),
      kind_of_classes("IoU", maker<IoU>(five)),
      kind_of_classes("Dice", maker<Dice>(five)),
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

TEST_P(EveryMetricTest, ManyBatchesEqualOneBatch) {
  update(*metric_, 0, 20);
  const auto parts = GetParam().make();
  for (const auto& [first, end] : {std::pair{0, 0}, {0, 7}, {7, 7}, {7, 8}, {8, 20}}) {
    update(*parts, first, end);
  }
  const auto value = metric_->compute();
  EXPECT_TRUE(torch::isfinite(value).all().item<bool>());
  EXPECT_EQ(value.scalar_type(), torch::kDouble);
  const double tolerance = GetParam().counts_classes ? 0.0 : 1e-14;
  EXPECT_TRUE(torch::allclose(parts->compute(), value, tolerance, 0.0)) << parts->compute();
}

TEST_P(EveryMetricTest, ComputeChangesNothing) {
  update(*metric_, 0, 20);
  const auto value = metric_->compute();
  const auto before = value.clone();
  value.zero_();
  EXPECT_TRUE(torch::equal(metric_->compute(), before));
}

TEST_P(EveryMetricTest, ResetClearsAllBatches) {
  update(*metric_, 0, 9);
  metric_->reset();
  update(*metric_, 9, 20);
  const auto fresh = GetParam().make();
  update(*fresh, 9, 20);
  EXPECT_TRUE(torch::equal(metric_->compute(), fresh->compute()));
}

TEST_P(EveryMetricTest, StateContinuesInAnotherMetric) {
  update(*metric_, 0, 9);
  const auto state = metric_->state_dict();
  update(*metric_, 9, 20);  // does not change the state
  const auto other = GetParam().make();
  update(*other, 3, 7);  // is replaced by the state
  other->load_state_dict(state);
  update(*other, 9, 20);
  EXPECT_TRUE(torch::equal(other->compute(), metric_->compute()));
}

TEST_P(EveryMetricTest, ARefusedBatchChangesNothing) {
  update(*metric_, 0, 20);
  const auto before = metric_->state_dict();
  const auto& bad_targets = GetParam().bad_targets;
  EXPECT_ERROR(metric_->update(GetParam().bad_outputs,
                               bad_targets.defined() ? bad_targets : targets_.slice(0, 0, 3)),
               GetParam().refusal);
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
  EXPECT_FALSE(value.requires_grad());
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

TEST(EveryMetricOnADeviceTest, CountingClassesReadsNoValue) {
  for (const auto& kind : kinds()) {
    // Tensors on the meta device have no values. The device lacks an operator that top_k needs.
    if (!kind.counts_classes || kind.name == std::string("Top2Accuracy")) continue;
    SCOPED_TRACE(kind.name);
    EXPECT_NO_THROW(
        kind.make()->update(kind.outputs(9).to(torch::kMeta), kind.targets(9).to(torch::kMeta)));
  }
}

// This is a loop because the name of a parameterised test cannot end in _CUDA.
TEST(EveryMetricOnADeviceTest, BatchesOnTheDeviceGiveTheSameValuesOrErrors_CUDA) {
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
    if (!kind.counts_classes) continue;
    EXPECT_TRUE(torch::equal(there->compute(), here->compute()));
    there->update(outputs.cuda(), targets.cuda() - 100);
    EXPECT_ERROR(there->compute(), "20 values in batches on a device were out of range");
  }
}

}  // namespace
}  // namespace linkboy::testing::metric_contract_test
