// How often the random numbers of image transforms take which value.

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <numeric>
#include <vector>

#include "linkboy/data/image_transforms.hpp"

namespace linkboy::testing::image_distributions_test {
namespace {

constexpr int64_t kCount = 3'000;

/// Which pixels the transform changes in black images, half of which have a white partner
/// [kCount, height, width].
torch::Tensor changed_pixels(const Transform& transform, int64_t height, int64_t width) {
  auto images = torch::zeros({kCount, 1, height, width});
  images.slice(0, 0, kCount, 2).fill_(1.0F);
  std::vector<int64_t> indices(kCount);
  std::iota(indices.begin(), indices.end(), 0);
  const auto labels = torch::zeros({kCount}, torch::kLong);
  const auto out = transform(Batch(images, labels), {1, 1, indices}).input();
  return (out != images).squeeze(1);
}

double mean_of(const torch::Tensor& values) {
  return values.to(torch::kDouble).mean().item<double>();
}

TEST(ImageDistributionsTest, CutmixTakesASquareRootOfTheShareFromEachSide) {
  // With alpha = 1 the partner's share u is uniform. Each side of the rectangle is a part p =
  // sqrt(u) around a uniform centre, which leaves p - p^2 / 4 of it inside: the mean area is E[u -
  // u^1.5 / 2 + u^2 / 16] = 77 / 240. Every other sample has a partner of its own colour.
  const double area = mean_of(changed_pixels(cutmix(1.0, 1), 64, 64));
  EXPECT_NEAR(2.0 * area, 77.0 / 240.0, 0.03);
}

TEST(ImageDistributionsTest, CutmixReachesEveryEdgeEquallyOften) {
  const auto changed = changed_pixels(cutmix(1.0, 1), 16, 16);
  const auto of_rows = changed.any(2).to(torch::kDouble).mean(0);
  const auto of_columns = changed.any(1).to(torch::kDouble).mean(0);
  EXPECT_GT(of_rows[0].item<double>(), 0.1);
  // Four standard deviations of the difference are at most 0.04.
  EXPECT_NEAR(of_rows[15].item<double>(), of_rows[0].item<double>(), 0.04);
  EXPECT_NEAR(of_columns[15].item<double>(), of_columns[0].item<double>(), 0.04);
}

TEST(ImageDistributionsTest, ErasedRectanglesAreAsOftenHighAsWide) {
  // A ratio that were uniform in 0.1 to 10 would be above 1 in 10 of 11 cases.
  const auto changed = changed_pixels(
      random_erasing({.p = 1.0, .scale = {0.05, 0.05}, .ratio = {0.1, 10.0}, .value = {2.0}}), 40,
      40);
  const auto height = changed.any(2).sum(1);
  const auto width = changed.any(1).sum(1);
  EXPECT_NEAR(mean_of(height > width), mean_of(width > height), 0.08);
}

}  // namespace
}  // namespace linkboy::testing::image_distributions_test
