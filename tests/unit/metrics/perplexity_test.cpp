#include "linkboy/metrics/perplexity.hpp"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <cmath>

#include "support/expect_error.hpp"
#include "unit/metrics/metric_inputs.hpp"

namespace linkboy::testing::perplexity_test {
namespace {

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
}  // namespace linkboy::testing::perplexity_test
