// Tests of the distributions of the random numbers in image transforms.

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <map>

#include "unit/data/image_batches.hpp"

namespace linkboy::testing::image_distributions_test {
namespace {

constexpr int64_t kNumImages = 3'000;

/// Applies the transform to images that are alternately white and black. Returns which pixels it
/// changes, as a mask [kNumImages, height, width].
torch::Tensor changed_pixels(const Transform& transform, int64_t height, int64_t width) {
  auto images = torch::zeros({kNumImages, 1, height, width});
  images.slice(0, 0, kNumImages, 2).fill_(1.0F);
  const Batch batch(images, torch::zeros({kNumImages}, torch::kLong));
  return (result_of(transform, batch).input() != images).squeeze(1);
}

TEST(ImageDistributionsTest, CutmixCutsTheSquareRootOfTheShareFromEachSide) {
  // With alpha = 1, the partner's share u is uniform. Each side of the rectangle has the relative
  // length p = sqrt(u) and a uniform centre, so p - p^2 / 4 of it is inside the image on average.
  // The mean area is E[u - u^1.5 / 2 + u^2 / 16] = 77 / 240. Half of the samples have a partner of
  // the same colour and do not change, hence the factor 2.
  const double area = mean_of(changed_pixels(cutmix(1.0, 1), 64, 64));
  EXPECT_NEAR(2.0 * area, 77.0 / 240.0, 0.03);
}

TEST(ImageDistributionsTest, CutmixReachesEveryEdgeEquallyOften) {
  const auto changed = changed_pixels(cutmix(1.0, 1), 16, 16);
  for (const int64_t side : {1, 2}) {
    const auto rates = changed.any(side).to(torch::kDouble).mean(0);
    EXPECT_GT(rates[0].item<double>(), 0.1);
    // Four standard deviations of the difference are at most 0.04.
    EXPECT_NEAR(rates[15].item<double>(), rates[0].item<double>(), 0.04) << "side " << side;
  }
}

TEST(ImageDistributionsTest, ErasedRectanglesAreTallAsOftenAsWide) {
  // If the ratio were uniform in 0.1 to 10, it would be above 1 in 10 of 11 cases.
  const auto changed = changed_pixels(
      random_erasing({.p = 1.0, .scale = {0.05, 0.05}, .ratio = {0.1, 10.0}, .value = {2.0}}), 40,
      40);
  const auto height = changed.any(2).sum(1);
  const auto width = changed.any(1).sum(1);
  EXPECT_NEAR(mean_of(height > width), mean_of(width > height), 0.08);
}

TEST(ImageRandomnessTest, CropOffsetsAreUniform) {
  // 25 places have 24 degrees of freedom. The probability of a value above 60 is 1 in 15,000.
  constexpr int64_t kCount = 5'000;
  const auto image = counting_images(1, 1, 6, 6, kFloats);
  const auto crops = result_of(random_crop(6, {.padding = 2}), image.expand({kCount, 1, 6, 6}));
  // The value of a pixel in the middle of the crop determines the crop's position.
  const auto middle = crops.select(1, 0).select(1, 3).select(1, 3).to(torch::kLong) - 1;
  std::map<int64_t, double> counts;
  for (int64_t i = 0; i < kCount; ++i) ++counts[middle[i].item<int64_t>()];
  ASSERT_EQ(counts.size(), 25U);
  std::vector<double> values;
  for (const auto& [place, count] : counts) values.push_back(count);
  EXPECT_LT(chi_square(values), 60.0);
}

double rate_of_change(const Transform& transform) {
  const auto image = counting_images(1, 1, 6, 6, kFloats);
  const auto images = image.expand({20'000, 1, 6, 6});
  return mean_of(differing_images(result_of(transform, images), images));
}

TEST(ImageRandomnessTest, ProbabilitiesMatchTheOptions) {
  // Four standard deviations of 20,000 samples are at most 0.014.
  EXPECT_NEAR(rate_of_change(random_horizontal_flip()), 0.5, 0.014);
  EXPECT_NEAR(rate_of_change(random_horizontal_flip(0.1)), 0.1, 0.014);
  EXPECT_NEAR(rate_of_change(random_erasing({.p = 0.25, .scale = {0.1, 0.2}})), 0.25, 0.014);
}

TEST(ImageRandomnessTest, ASecondTransformOfAKindDrawsIndependentNumbers) {
  // With the same numbers, two flips would cancel each other in every image.
  const auto flip = random_horizontal_flip();
  EXPECT_NEAR(rate_of_change(compose({flip, flip})), 0.5, 0.014);
  EXPECT_NEAR(rate_of_change(compose({compose({flip}), do_nothing, flip})), 0.5, 0.014);
}

TEST(ImageRandomnessTest, DifferentKindsAreIndependent) {
  // An image is flipped, or cropped near its left end, with a probability of 1/2 each. If the
  // events are independent, both occur with a probability of 1/4.
  constexpr int64_t kCount = 20'000;
  const auto images = torch::arange(1, 9, kFloats).expand({kCount, 1, 4, 8});
  const auto flipped = result_of(random_horizontal_flip(), images).select(-1, 0).flatten(1) == 8;
  const auto left = result_of(random_crop({4, 5}), images).select(-1, 0).flatten(1) <= 2;
  EXPECT_NEAR(mean_of(flipped.select(1, 0).logical_and(left.select(1, 0))), 0.25, 0.013);
}

TEST(ImageRandomnessTest, NoiseIsStandardNormal) {
  const auto images = torch::full({500, 3, 16, 16}, 100.0F);
  const auto noisy = result_of(random_erasing({.p = 1.0, .noise = true}), images);
  const auto noise = noisy.masked_select(noisy != 100.0F).to(torch::kDouble);
  ASSERT_GT(noise.numel(), 20'000);
  EXPECT_NEAR(mean_of(noise), 0.0, 0.03);
  EXPECT_NEAR(noise.std().item<double>(), 1.0, 0.03);
  EXPECT_NEAR(mean_of(noise.pow(4)), 3.0, 0.3);
}

}  // namespace
}  // namespace linkboy::testing::image_distributions_test
