// Tests that apply to every metric of numbers, probabilities and scores: batches, reset and state.

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <cmath>
#include <functional>
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
#include "unit/metrics/metric_inputs.hpp"

namespace linkboy::testing::metric_contract_test {
namespace {

/// A metric and suitable batches.
struct Kind {
  const char* name;
  std::function<std::unique_ptr<Metric>()> make;
  std::function<torch::Tensor(int64_t rows)> outputs;
  std::function<torch::Tensor(int64_t rows)> targets;
  /// Outputs that `update` refuses.
  torch::Tensor bad_outputs;
};

void PrintTo(const Kind& kind, std::ostream* stream) { *stream << kind.name; }

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

TEST_P(EveryMetricTest, ManyBatchesEqualOneBatch) {
  update(*metric_, 0, 20);
  const auto parts = GetParam().make();
  for (const auto& [first, end] : {std::pair{0, 7}, {7, 7}, {7, 8}, {8, 20}}) {
    update(*parts, first, end);
  }
  const auto value = metric_->compute();
  EXPECT_TRUE(torch::isfinite(value).all().item<bool>());
  EXPECT_TRUE(torch::allclose(parts->compute(), value, 1e-14, 0.0)) << parts->compute();
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
  const auto other = GetParam().make();
  update(*other, 3, 7);  // is replaced by the state
  other->load_state_dict(metric_->state_dict());
  update(*other, 9, 20);
  update(*metric_, 9, 20);
  EXPECT_TRUE(torch::equal(other->compute(), metric_->compute()));
}

TEST_P(EveryMetricTest, ARefusedBatchChangesNothing) {
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

// This is a loop because the name of a parameterised test cannot end in _CUDA.
TEST(EveryMetricOnADeviceTest, BatchesOnTheDeviceGiveTheSameValues_CUDA) {
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

}  // namespace
}  // namespace linkboy::testing::metric_contract_test
