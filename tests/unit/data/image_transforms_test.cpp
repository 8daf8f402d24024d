// Tests that compare image transforms with slow reference implementations.

#include "linkboy/data/image_transforms.hpp"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <set>

#include "unit/data/image_batches.hpp"

namespace linkboy::testing::image_transforms_test {
namespace {

/// Returns the row and column of `crop` in `padded`. Fails if `padded` does not contain it.
std::pair<int64_t, int64_t> find_crop(const torch::Tensor& padded, const torch::Tensor& crop) {
  for (int64_t top = 0; top + crop.size(-2) <= padded.size(-2); ++top) {
    for (int64_t left = 0; left + crop.size(-1) <= padded.size(-1); ++left) {
      const Box box = {top, left, top + crop.size(-2), left + crop.size(-1)};
      if (torch::equal(part_of(padded, box), crop)) return {top, left};
    }
  }
  ADD_FAILURE() << "the padded image does not contain the crop";
  return {-1, -1};
}

/// Expects that each channel of each crop is a part of the image with `padding` around it.
void expect_crops_of(const torch::Tensor& images, int64_t padding, const torch::Tensor& crops) {
  const auto padded = torch::constant_pad_nd(images, {padding, padding, padding, padding}, 0);
  for (int64_t i = 0; i < images.size(0); ++i) find_crop(padded[i], crops[i]);
}

/// Expects that the image is the original with the rectangle `box` in the colours {0, second}.
void expect_erased(const torch::Tensor& image, const torch::Tensor& original, const Box& box,
                   int64_t second) {
  auto expected = original.clone();
  part_of(expected[0], box).fill_(0);
  part_of(expected[1], box).fill_(second);
  EXPECT_TRUE(torch::equal(image, expected));
}

INSTANTIATE_TEST_SUITE_P(Types, ImageTransformsTest, ::testing::Values(kBytes, kFloats),
                         [](const auto& info) { return info.param == kBytes ? "uint8" : "float"; });

TEST_P(ImageTransformsTest, CropsWithinThePaddedImage) {
  const auto images = counting_images(40, 3, 7, 9, GetParam());
  const auto crops = result_of(random_crop({6, 8}, {.padding = 2}), images);
  ASSERT_EQ(crops.sizes(), (std::vector<int64_t>{40, 3, 6, 8}));
  ASSERT_EQ(crops.scalar_type(), GetParam());
  expect_crops_of(images, 2, crops);
  expect_crops_of(images, 6, result_of(random_crop(15, {.padding = 6}), images));  // larger
}

TEST_P(ImageTransformsTest, ACropOfTheFullSizeWithoutPaddingIsTheImage) {
  const auto images = counting_images(5, 3, 6, 8, GetParam());
  EXPECT_TRUE(same_bits(result_of(random_crop({6, 8}), images), images));
}

TEST_P(ImageTransformsTest, ACropShowsTheFillValueOfEachChannel) {
  const auto images = counting_images(20, 2, 5, 5, GetParam());
  const auto crops = result_of(random_crop(5, {.padding = 3, .fill = {0, 255}}), images);
  for (int64_t i = 0; i < 20; ++i) {
    for (int64_t c = 0; c < 2; ++c) {
      find_crop(torch::constant_pad_nd(images[i][c], {3, 3, 3, 3}, c * 255), crops[i][c]);
    }
  }
}

TEST_P(ImageTransformsTest, FlipsLeftToRightOrNotAtAll) {
  const auto images = counting_images(50, 3, 4, 5, GetParam());
  const auto flips = result_of(random_horizontal_flip(), images);
  int64_t num_flipped = 0;
  for (int64_t i = 0; i < 50; ++i) {
    const bool flipped = torch::equal(flips[i], images[i].flip(-1));
    EXPECT_TRUE(flipped || torch::equal(flips[i], images[i]));
    num_flipped += flipped;
  }
  EXPECT_GT(num_flipped, 10);
  EXPECT_LT(num_flipped, 40);
  EXPECT_TRUE(same_bits(result_of(random_horizontal_flip(1.0), images), images.flip(-1)));
  EXPECT_TRUE(same_bits(result_of(random_horizontal_flip(0.0), images), images));
}

TEST_P(ImageTransformsTest, NormaliseEqualsTorchvisionsOperations) {
  const auto images = GetParam() == kBytes
                          ? torch::arange(256, kBytes).expand({3, 2, 1, 256}).reshape({2, 3, 4, 64})
                          : torch::randn({2, 3, 4, 64});
  const auto mean = torch::tensor({0.4914, 0.4822, 0.4465}, kFloats).reshape({3, 1, 1});
  const auto std = torch::tensor({0.2470, 0.2435, 0.2616}, kFloats).reshape({3, 1, 1});
  auto expected = images.to(kFloats);
  if (GetParam() == kBytes) expected = expected.mul(1.0 / 255.0);
  expected = expected.sub(mean).div(std);
  const auto normalised =
      result_of(normalise({0.4914, 0.4822, 0.4465}, {0.2470, 0.2435, 0.2616}), images);
  EXPECT_TRUE(same_bits(normalised, expected));
  EXPECT_TRUE(same_bits(result_of(normalise({0.5}, {0.25}), images),
                        result_of(normalise({0.5, 0.5, 0.5}, {0.25, 0.25, 0.25}), images)));
}

TEST_P(ImageTransformsTest, ErasesARectangleWithinTheLimits) {
  const auto images = counting_images(300, 2, 20, 30, GetParam());
  const auto erased = result_of(
      random_erasing({.p = 1.0, .scale = {0.05, 0.3}, .ratio = {0.5, 2.0}, .value = {0, 255}}),
      images);
  const auto mask = (erased != images).any(1);
  for (int64_t i = 0; i < 300; ++i) {
    const Box box = box_of(mask[i]);
    // Rounding changes each side by at most half a pixel.
    const double height = box.bottom - box.top;
    const double width = box.right - box.left;
    EXPECT_GE((height + 0.5) * (width + 0.5), 0.05 * 600);
    EXPECT_LE((height - 0.5) * (width - 0.5), 0.3 * 600);
    EXPECT_GE((height + 0.5) / (width - 0.5), 0.5);
    EXPECT_LE((height - 0.5) / (width + 0.5), 2.0);
    expect_erased(erased[i], images[i], box, 255);
  }
}

TEST_P(ImageTransformsTest, ARectangleThatNeverFitsErasesNothing) {
  const auto images = counting_images(20, 1, 8, 8, GetParam());
  EXPECT_TRUE(same_bits(result_of(random_erasing({.p = 1.0, .scale = {1, 1}}), images), images));
}

TEST_P(ImageTransformsTest, CutoutSquaresCanExtendBeyondTheImage) {
  const auto images = counting_images(1000, 2, 10, 12, GetParam());
  const auto cut = result_of(cutout(5, {0, 253}), images);
  const auto mask = (cut != images).any(1);
  std::set<std::pair<int64_t, int64_t>> corners;
  for (int64_t i = 0; i < 1000; ++i) {
    const Box box = box_of(mask[i]);
    EXPECT_TRUE(box.bottom - box.top == 5 || box.top == 0 || box.bottom == 10);
    EXPECT_TRUE(box.right - box.left == 5 || box.left == 0 || box.right == 12);
    EXPECT_GE(box.area(), 9);  // the centre is inside
    EXPECT_LE(box.area(), 25);
    corners.emplace(box.bottom, box.right);
    expect_erased(cut[i], images[i], box, 253);
  }
  EXPECT_EQ(corners.size(), 8U * 10U);  // three centres lead to the last row or column
}

TEST_P(ImageTransformsTest, ImagesWithoutAChannelDimensionKeepTheirShape) {
  const auto images = counting_images(10, 1, 8, 8, GetParam());
  const auto all = compose({random_crop(7, {.padding = 1}), random_horizontal_flip(), cutout(2),
                            normalise({0.5}, {0.5}), random_erasing({.noise = true})});
  const auto squeezed = result_of(all, images.squeeze(1));
  EXPECT_EQ(squeezed.sizes(), (std::vector<int64_t>{10, 7, 7}));
  EXPECT_TRUE(same_bits(squeezed, result_of(all, images).squeeze(1)));
}

TEST_P(ImageTransformsTest, AcceptAnyStrides) {
  const auto images = counting_images(6, 3, 8, 8, GetParam());
  const std::vector<Transform> transforms = {
      random_horizontal_flip(), normalise({0.1}, {0.3}),
      compose({random_crop(6, {.padding = 2}), random_horizontal_flip(), normalise({0.5}, {2})}),
      compose({normalise({0.0}, {1.0}), mixup(1.0, 3)}), cutmix(1.0, 3)};
  for (const auto& view :
       {images.to(torch::MemoryFormat::ChannelsLast), images.transpose(2, 3),
        images.slice(3, 0, 8, 2), images.slice(0, 0, 1).expand({6, 3, 8, 8}), images.flip(0)}) {
    for (const auto& transform : transforms) {
      const auto labels = torch::arange(12).slice(0, 0, 12, 2) % 3;
      const auto out = result_of(transform, Batch(view, labels));
      EXPECT_TRUE(out.input().is_contiguous());
      EXPECT_TRUE(
          same_bits(out.input(),
                    result_of(transform, Batch(view.contiguous(), labels.contiguous())).input()));
    }
  }
}

TEST_P(ImageTransformsTest, NeverWriteToTheirInput) {
  const auto images = counting_images(6, 3, 8, 8, GetParam());
  const auto labels = torch::arange(6);
  const auto images_before = images.clone();
  for (const auto& transform :
       {random_crop(8), random_horizontal_flip(1.0), random_erasing({.p = 1.0}), cutout(3),
        normalise({0.0}, {1.0}), cutmix(1.0, 6), compose({normalise({0}, {1}), mixup(1.0, 6)}),
        compose({cutout(3), random_horizontal_flip(1.0)})}) {
    const auto out = result_of(transform, Batch(images, labels));
    EXPECT_NE(out.input().const_data_ptr(), images.const_data_ptr());
    EXPECT_TRUE(torch::equal(images, images_before));
    EXPECT_TRUE(torch::equal(labels, torch::arange(6)));
  }
}

TEST_P(ImageTransformsTest, AnEmptyBatchStaysEmpty) {
  const auto images = counting_images(0, 3, 8, 8, GetParam());
  const auto out =
      result_of(compose({random_crop(6), normalise({0.0}, {1.0}), mixup(1.0, 5), cutmix(1.0, 5)}),
                Batch(images, torch::empty({0}, torch::kLong)));
  EXPECT_EQ(out.input().sizes(), (std::vector<int64_t>{0, 3, 6, 6}));
  EXPECT_EQ(out.target().sizes(), (std::vector<int64_t>{0, 5}));
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

TEST(ComposeTest, DoesNotChangeATensorThatACustomTransformKeeps) {
  torch::Tensor kept;
  const auto keep = [&](Batch batch, const TransformContext&) {
    kept = batch.input();
    return batch;
  };
  const auto images = counting_images(4, 1, 3, 3, kBytes);
  const auto flip = random_horizontal_flip(1.0);
  EXPECT_TRUE(torch::equal(result_of(compose({flip, keep, flip}), images), images));
  EXPECT_TRUE(torch::equal(kept, images.flip(-1)));
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
}  // namespace linkboy::testing::image_transforms_test
