// Tests of mixup and cutmix.

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "unit/data/image_batches.hpp"

namespace linkboy::testing::image_mixing_test {
namespace {

/// How a sample was mixed. Each sample has a different class, so its target shows its partner and
/// its own weight.
struct Mixed {
  double weight;
  int64_t partner;
};

Mixed read_target(const torch::Tensor& target, int64_t i) {
  const double weight = target[i].item<double>();
  auto others = target.clone();
  others[i] = 0;
  const bool is_mixed = others.max().item<double>() > 0.0;
  return {weight, is_mixed ? others.argmax().item<int64_t>() : i};
}

TEST(MixupTest, ImagesAndTargetsAreMixedWithTheSameWeights) {
  const auto images = torch::randn({50, 3, 4, 5});
  const auto mixed = result_of(mixup(1.0, 60), Batch(images, torch::arange(50)));
  EXPECT_EQ(mixed.target().sizes(), (std::vector<int64_t>{50, 60}));
  EXPECT_EQ(mixed.target().scalar_type(), kFloats);
  for (int64_t i = 0; i < 50; ++i) {
    const auto [weight, partner] = read_target(mixed.target()[i], i);
    EXPECT_NE(partner, i);
    const auto expected = images[i] * weight + images[partner] * (1.0 - weight);
    EXPECT_TRUE(torch::allclose(mixed.input()[i], expected, 1e-5, 1e-6));
  }
}

TEST(MixupTest, WeightsFollowTheBetaDistribution) {
  auto halves = torch::zeros({4'000, 1, 1, 1});
  halves.slice(0, 0, 2'000).fill_(1.0F);
  const Batch batch(halves, torch::zeros({4'000}, torch::kLong));
  for (const double alpha : {0.001, 0.2, 1.0, 4.0}) {
    // Half of the images of value 1 have a partner of value 0. Their new value is their weight.
    const auto mixed = result_of(mixup(alpha, 1), batch).input().flatten();
    const auto weights = mixed.slice(0, 0, 2'000).to(torch::kDouble);
    EXPECT_FALSE(weights.isnan().any().item<bool>());
    // The mean is (1 + 1/2) / 2, and the mean square is (1 + 1/4 + variance) / 2.
    const double variance = 1.0 / (4.0 * (2.0 * alpha + 1.0));
    EXPECT_NEAR(mean_of(weights), 0.75, 0.05) << alpha;
    EXPECT_NEAR(mean_of(weights.pow(2)), (1.25 + variance) / 2.0, 0.05) << alpha;
  }
}

TEST(MixupTest, EveryOtherSampleIsThePartnerEquallyOften) {
  // 6 x 5 pairs have 24 degrees of freedom. The probability of a value above 60 is 1 in 15,000.
  std::vector<double> counts(30, 0.0);
  const auto images = torch::zeros({6, 1, 1, 1});
  for (int64_t epoch = 0; epoch < 1'000; ++epoch) {
    const auto mixed = result_of(mixup(4.0, 6), Batch(images, torch::arange(6)), 1, epoch);
    for (int64_t i = 0; i < 6; ++i) {
      const int64_t partner = read_target(mixed.target()[i], i).partner;
      ASSERT_NE(partner, i);
      ++counts[i * 5 + (partner + 6 - i) % 6 - 1];
    }
  }
  EXPECT_LT(chi_square(counts), 60.0);
}

TEST_P(ImageTransformsTest, CutmixMixesTargetsByTheShareOfTheRectangle) {
  const auto images = counting_images(200, 2, 9, 7, GetParam());
  const auto mixed = result_of(cutmix(1.0, 200), Batch(images, torch::arange(200)));
  ASSERT_EQ(mixed.input().scalar_type(), GetParam());
  int64_t num_mixed = 0;
  for (int64_t i = 0; i < 200; ++i) {
    const auto [weight, partner] = read_target(mixed.target()[i], i);
    const auto image = mixed.input()[i];
    num_mixed += partner != i;
    // If the sample has no partner, the box is empty.
    const Box box = box_of((image != images[i]).any(0));
    EXPECT_NEAR(weight, 1.0 - box.area() / 63.0, 1e-6);
    auto expected = images[i].clone();
    part_of(expected, box).copy_(part_of(images[partner], box));
    EXPECT_TRUE(torch::equal(image, expected));
  }
  EXPECT_GT(num_mixed, 150);
}

TEST(MixupTest, TargetsSumToOne) {
  const auto images = torch::randn({100, 1, 4, 4});
  const auto labels = torch::arange(100) % 7;
  for (const auto& transform : {mixup(0.2, 7), cutmix(1.0, 7), mixup(1.0, 7, {.p = 0.5}),
                                compose({mixup(0.2, 7), cutmix(1.0, 7)})}) {
    const auto target = result_of(transform, Batch(images, labels)).target();
    EXPECT_TRUE(torch::allclose(target.sum(1), torch::ones({100}), 0, 1e-6));
    EXPECT_TRUE((target >= 0).all().item<bool>());
  }
}

TEST(MixupTest, LeavesSamplesUnmixedWithTheGivenProbability) {
  const Batch batch(torch::randn({4'000, 1, 2, 2}), torch::arange(4'000) % 2);
  const auto classes = torch::one_hot(batch.target(), 2).to(kFloats);
  for (const double p : {0.0, 0.3, 1.0}) {
    const auto mixed = result_of(mixup(4.0, 2, {.p = p}), batch);
    const auto is_changed = differing_images(mixed.input(), batch.input());
    EXPECT_NEAR(mean_of(is_changed), p, 0.03);
    const auto is_kept = is_changed.logical_not();
    EXPECT_TRUE(torch::equal(mixed.target().index({is_kept}), classes.index({is_kept})));
  }
}

TEST(MixupTest, ASingleSampleStaysUnmixed) {
  const auto image = torch::randn({1, 3, 4, 4});
  for (const auto& transform : {mixup(1.0, 3), cutmix(1.0, 3)}) {
    const auto out = result_of(transform, Batch(image, torch::tensor({2}, torch::kLong)));
    EXPECT_TRUE(torch::equal(out.input(), image));
    EXPECT_TRUE(torch::allclose(out.target(), torch::tensor({{0.F, 0.F, 1.F}})));
  }
}

TEST(MixupTest, AcceptsTargetsOfAnyIntegerTypeAndProbabilities) {
  const auto images = torch::randn({5, 1, 2, 2});
  const auto labels = torch::arange(5) % 3;
  const auto expected = result_of(mixup(1.0, 3), Batch(images, labels)).target();
  for (const auto& target :
       {labels.to(torch::kInt), labels.to(kBytes), torch::one_hot(labels, 3).to(kFloats),
        torch::one_hot(labels, 3).to(kFloats).t().contiguous().t()}) {
    EXPECT_TRUE(same_bits(result_of(mixup(1.0, 3), Batch(images, target)).target(), expected));
  }
}

}  // namespace
}  // namespace linkboy::testing::image_mixing_test
