#include <gtest/gtest.h>
#include <torch/torch.h>

#include <cmath>

#include "support/expect_error.hpp"
#include "unit/data/image_batches.hpp"

namespace linkboy::testing::image_errors_test {
namespace {

TEST(ImageErrorsTest, RejectsOptionsOutOfRange) {
  EXPECT_ERROR(compose({random_crop(3), Transform()}), "compose: transform 1 is an empty function");
  EXPECT_ERROR(normalise({}, {}), "normalise: mean has no values");
  EXPECT_ERROR(normalise({0.0}, {1.0, 1.0}), "mean has 1 values and std has 2");
  EXPECT_ERROR(normalise({0.0}, {0.0}), "a std is 0");
  EXPECT_ERROR(normalise({0.0}, {-1.0}), "a std is -1");
  EXPECT_ERROR(normalise({NAN}, {1.0}), "a mean is nan");
  EXPECT_ERROR(random_crop(0), "random_crop: height is 0; it must be 1 to");
  EXPECT_ERROR(random_crop({3, -1}), "random_crop: width is -1; it must be 1 to");
  EXPECT_ERROR(random_crop(3, {.padding = -1}), "random_crop: padding is -1; it must be 0 to");
  EXPECT_ERROR(random_crop(3, {.padding = int64_t{1} << 40}), "random_crop: padding is");
  EXPECT_ERROR(random_crop(3, {.fill = {}}), "random_crop: fill has no values");
  EXPECT_ERROR(random_horizontal_flip(1.5), "random_horizontal_flip: p is 1.5");
  EXPECT_ERROR(random_horizontal_flip(NAN), "random_horizontal_flip: p is nan");
  EXPECT_ERROR(random_erasing({.p = -0.1}), "random_erasing: p is -0.1");
  EXPECT_ERROR(random_erasing({.scale = {0.5, 0.1}}), "random_erasing: scale is 0.5 to 0.1");
  EXPECT_ERROR(random_erasing({.scale = {0.5, 1.1}}), "random_erasing: scale is 0.5 to 1.1");
  EXPECT_ERROR(random_erasing({.ratio = {0.0, 1.0}}), "random_erasing: ratio is 0 to 1");
  EXPECT_ERROR(random_erasing({.value = {}}), "random_erasing: value has no values");
  EXPECT_ERROR(cutout(0), "cutout: size is 0; it must be 1 to");
  EXPECT_ERROR(cutout(3, {}), "cutout: fill has no values");
  EXPECT_ERROR(mixup(0.0, 10), "mixup: alpha is 0");
  EXPECT_ERROR(cutmix(INFINITY, 10), "cutmix: alpha is inf");
  EXPECT_ERROR(mixup(1.0, 0), "mixup: num_classes is 0");
  EXPECT_ERROR(cutmix(1.0, 10, {.p = 2.0}), "cutmix: p is 2");
}

TEST(ImageErrorsTest, RejectsTensorsThatAreNotImages) {
  const auto flip = random_horizontal_flip();
  const auto images = torch::zeros({2, 1, 3, 3});
  EXPECT_ERROR(result_of(flip, torch::zeros({2, 3})),
               "is of shape [2, 3]; images must be [N, C, H, W]");
  EXPECT_ERROR(result_of(flip, torch::zeros({1, 1, 1, 1, 1})), "is of shape [1, 1, 1, 1, 1]");
  EXPECT_ERROR(flip(Batch(torch::Tensor()), {1, 1, {}}), "first tensor is undefined");
  EXPECT_ERROR(result_of(flip, images.to(torch::kDouble)), "the images are Double");
  EXPECT_ERROR(result_of(flip, images.to_sparse()), "on cpu, Sparse");
  EXPECT_ERROR(result_of(flip, images.to(torch::kMeta)), "on meta");
  EXPECT_ERROR(result_of(flip, torch::zeros({2, 1, 0, 3})), "the images are 0 x 3");
  const std::vector<int64_t> one = {0};
  EXPECT_ERROR(flip(Batch(images), {1, 1, one}),
               "there are 2 images, but the context has 1 indices");
}

TEST(ImageErrorsTest, RejectsImagesThatDoNotFitTheOptions) {
  const auto bytes = torch::zeros({2, 3, 8, 8}, kBytes);
  EXPECT_ERROR(result_of(random_crop(11, {.padding = 1}), bytes),
               "images of 8 x 8 with a padding of 1 are smaller than the crop, 11 x 11");
  EXPECT_ERROR(result_of(compose({random_crop(4), random_crop(5)}), bytes), "images of 4 x 4");
  EXPECT_ERROR(result_of(random_crop(8, {.fill = {1, 2}}), bytes),
               "random_crop: fill has 2 values, but the images have 3 channels");
  EXPECT_ERROR(result_of(random_crop(8, {.fill = {0.5}}), bytes), "random_crop: fill has 0.5, but");
  EXPECT_ERROR(result_of(random_erasing({.value = {256}}), bytes), "value has 256, but");
  EXPECT_ERROR(result_of(cutout(2, {-1}), bytes), "cutout: fill has -1, but");
  EXPECT_ERROR(result_of(normalise({0, 0}, {1, 1}), bytes),
               "there are 2 means, but the images have 3");
  EXPECT_ERROR(result_of(random_erasing({.noise = true}), bytes), "noise is set, but");
}

TEST(ImageErrorsTest, RejectsTargetsThatCannotBeMixed) {
  const auto images = torch::zeros({2, 1, 3, 3});
  EXPECT_ERROR(result_of(mixup(1.0, 3), Batch(images.to(kBytes), torch::arange(2))),
               "mixup: the images are uint8");
  EXPECT_ERROR(result_of(mixup(1.0, 3), Batch(images)), "the batch has no target");
  const auto mix = [&](const Transform& transform, const torch::Tensor& target) {
    result_of(transform, Batch(images, target));
  };
  EXPECT_ERROR(mix(cutmix(1.0, 3), {}), "cutmix: the target is not a tensor on the CPU");
  EXPECT_ERROR(mix(mixup(1.0, 3), torch::arange(0, 6, 3)),
               "mixup: sample 1 of the batch has class 3; classes must be 0 to 2");
  EXPECT_ERROR(mix(mixup(1.0, 3), torch::arange(-1, 1)), "sample 0 of the batch has class -1");
  EXPECT_ERROR(mix(cutmix(1.0, 3), torch::zeros({2})),
               "cutmix: the target is Float of shape [2]; it must be integer classes");
  EXPECT_ERROR(mix(cutmix(1.0, 3), torch::zeros({2, 4})), "of shape [2, 4]");
  EXPECT_ERROR(mix(cutmix(1.0, 3), torch::arange(3)), "Long of shape [3]");
}

}  // namespace
}  // namespace linkboy::testing::image_errors_test
