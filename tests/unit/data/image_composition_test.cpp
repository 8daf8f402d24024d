// Tests of composed transforms, which may be fused into one pass.

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "unit/data/image_batches.hpp"

namespace linkboy::testing::image_composition_test {
namespace {

/// Composes the same transforms so that no two of them can be fused.
Transform apart(const std::vector<Transform>& transforms) {
  std::vector<Transform> all;
  for (const auto& transform : transforms) {
    all.push_back(transform);
    all.emplace_back(do_nothing);
  }
  return compose(all);
}

TEST_P(ImageTransformsTest, FusedTransformsAreBitIdenticalToUnfusedOnes) {
  const auto crop = random_crop({9, 8}, {.padding = 3, .fill = {7, 0, 255}});
  const auto small_crop = random_crop(7, {.padding = 2, .fill = {9}});
  const auto flip = random_horizontal_flip();
  const auto erase = random_erasing({.p = 0.8, .value = {3, 200, 100}});
  const auto noise = random_erasing({.p = 0.8, .noise = true});
  const auto cut = cutout(4, {1, 2, 3});
  const auto to_float = normalise({0.4914, 0.4822, 0.4465}, {0.2470, 0.2435, 0.2616});
  const auto again = normalise({0.1}, {3.0});
  const std::vector<std::vector<Transform>> combinations = {
      {crop, flip, to_float},
      {to_float, flip, crop},
      {flip, to_float, crop},
      {crop, flip, small_crop, flip, to_float},
      {crop, cut, flip, erase, small_crop, to_float, flip},
      {erase, crop, flip, cut, to_float, erase, flip, small_crop, cut},
      {to_float, noise, erase, cut, noise},
      {crop, to_float, noise, flip, small_crop, noise, again},
      {to_float, again, flip},
      {cut, cut, erase, erase, flip, flip, crop, small_crop}};
  const auto images = torch::randint(256, {64, 3, 10, 11}).to(GetParam());
  for (std::size_t i = 0; i < combinations.size(); ++i) {
    const auto fused = result_of(compose(combinations[i]), images);
    EXPECT_TRUE(same_bits(fused, result_of(apart(combinations[i]), images))) << "combination " << i;
    EXPECT_TRUE(fused.is_contiguous());
  }
}

TEST_P(ImageTransformsTest, ComposedTransformsGiveTheSameResultsAsSingleOnes) {
  const auto images = torch::randint(256, {32, 3, 10, 10}).to(GetParam());
  const std::vector<Transform> transforms = {
      random_crop(9, {.padding = 2}), random_horizontal_flip(), cutout(3), normalise({0.5}, {0.25}),
      random_erasing({.p = 0.5, .noise = true})};
  auto one_by_one = images;
  for (const auto& transform : transforms) one_by_one = result_of(transform, one_by_one);
  EXPECT_TRUE(same_bits(result_of(compose(transforms), images), one_by_one));
}

TEST(ComposeTest, AcceptsLambdasAndKeepsTheOrder) {
  const auto add_ten = [](Batch batch, const TransformContext&) {
    batch.set("input", batch.input() + 10);
    return batch;
  };
  const auto halve = normalise({0.0}, {2.0});
  const auto zeros = torch::zeros({2, 1, 3, 3});
  EXPECT_TRUE(torch::equal(result_of(compose({add_ten, halve}), zeros), zeros + 5));
  EXPECT_TRUE(torch::equal(result_of(compose({halve, add_ten}), zeros), zeros + 10));
}

TEST(ComposeTest, ANestedComposeCountsAsItsParts) {
  const auto images = counting_images(64, 3, 8, 8, kBytes);
  const auto flip = random_horizontal_flip();
  const auto crop = random_crop(8, {.padding = 2});
  const auto both = compose({flip, crop});
  const auto flat = result_of(compose({flip, crop, flip, crop}), images);
  EXPECT_TRUE(same_bits(flat, result_of(compose({both, flip, crop}), images)));
  EXPECT_TRUE(same_bits(flat, result_of(compose({both, both}), images)));
}

TEST(ComposeTest, WithoutTransformsKeepsTheBatch) {
  const auto text = torch::arange(4, torch::kDouble);
  EXPECT_TRUE(same_bits(result_of(compose({}), text), text));
}

TEST(ComposeTest, DoesNotChangeOtherTensors) {
  const Batch batch{{"pixels", counting_images(3, 1, 4, 4, kBytes)}, {"name", torch::arange(3)}};
  const auto out = result_of(compose({random_horizontal_flip(), normalise({0.0}, {1.0})}), batch);
  EXPECT_EQ(out["pixels"].scalar_type(), kFloats);
  EXPECT_TRUE(torch::equal(out["name"], torch::arange(3)));
}

}  // namespace
}  // namespace linkboy::testing::image_composition_test
