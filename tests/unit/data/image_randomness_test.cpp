// Tests of the random numbers of image transforms: that they depend only on the seed, the epoch and
// the sample, and how they are distributed.

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <filesystem>
#include <map>
#include <set>
#include <thread>

#include "unit/data/image_batches.hpp"

namespace linkboy::testing::image_randomness_test {
namespace {

Transform everything() {
  return compose({random_crop(8, {.padding = 2}), random_horizontal_flip(), cutout(2),
                  normalise({0.5}, {0.25}), random_erasing({.noise = true})});
}

TEST(ImageRandomnessTest, SeedAndEpochAreNotInterchangeable) {
  const auto images = torch::arange(2, kFloats).expand({64, 1, 1, 2});
  std::set<std::string> patterns;
  for (const uint64_t seed : {0, 1, 2, 3, 4, 5, 6, 7, -1, -2}) {
    for (int64_t epoch = 0; epoch < 10; ++epoch) {
      const auto flips = result_of(random_horizontal_flip(), images, seed, epoch);
      patterns.insert(c10::str(flips.select(-1, 0).flatten()));
    }
  }
  EXPECT_EQ(patterns.size(), 100U);
}

TEST(ImageRandomnessTest, RandomNumbersNeverChangeBetweenVersions) {
  // A run that is resumed from an older version must see the same images.
  const auto images = torch::arange(9, kFloats).expand({6, 1, 1, 9});
  const auto seen =
      result_of(compose({random_crop({1, 4}), random_horizontal_flip()}), images, 42, 3);
  std::vector<int64_t> ends;
  for (int64_t i = 0; i < 6; ++i) {
    for (const int64_t x : {0, 3}) ends.push_back(seen[i][0][0][x].item<int64_t>());
  }
  EXPECT_EQ(ends, (std::vector<int64_t>{8, 5, 3, 0, 5, 2, 8, 5, 5, 2, 2, 5}));
}

using ImagesByIndex = std::map<int64_t, torch::Tensor>;

/// Returns the transformed samples of an epoch.
ImagesByIndex epoch_of(const Transform& transform, int64_t num_workers, int64_t batch_size,
                       bool shuffle) {
  constexpr int64_t kCount = 41;
  const TensorDataset data({{"input", counting_images(kCount, 3, 8, 8, kBytes)},
                            {"target", torch::arange(kCount)},
                            {"index", torch::arange(kCount)}});
  const auto loader = make_data_loader(data, {.batch_size = batch_size,
                                              .shuffle = shuffle,
                                              .num_workers = num_workers,
                                              .seed = 3,
                                              .transform = transform});
  ImagesByIndex images;
  for (const Batch& batch : loader->batches(/*epoch=*/2)) {
    for (int64_t i = 0; i < batch.size(); ++i) {
      images[batch["index"][i].item<int64_t>()] = batch.input()[i];
    }
  }
  EXPECT_EQ(static_cast<int64_t>(images.size()), kCount);
  return images;
}

void expect_same(const ImagesByIndex& a, const ImagesByIndex& b) {
  for (const auto& [index, image] : a) EXPECT_TRUE(same_bits(image, b.at(index))) << index;
}

TEST(ImageRandomnessTest, NeitherWorkersNorBatchSizeNorOrderChangeAnImage) {
  const auto expected = epoch_of(everything(), 0, 4, true);
  for (const int64_t workers : {0, 1, 3}) {
    for (const int64_t batch_size : {1, 7, 64}) {
      for (const bool shuffle : {false, true}) {
        expect_same(epoch_of(everything(), workers, batch_size, shuffle), expected);
      }
    }
  }
}

TEST(ImageRandomnessTest, WorkersDoNotChangeMixedImages) {
  const auto mixing = compose({everything(), mixup(0.4, 41), cutmix(1.0, 41)});
  const auto expected = epoch_of(mixing, 0, 8, true);
  for (const int64_t workers : {1, 3}) expect_same(epoch_of(mixing, workers, 8, true), expected);
}

TEST(ImageRandomnessTest, StartsNoThreads) {
  const auto count_threads = [] {
    const std::filesystem::directory_iterator tasks("/proc/self/task");
    return std::distance(begin(tasks), end(tasks));
  };
  const auto images = counting_images(64, 3, 64, 64, kBytes);
  // The transform runs in a new thread, like a loader's worker, for which OpenMP would create a new
  // team of threads.
  std::thread([&] {
    const auto before = count_threads();
    result_of(compose({everything(), mixup(1.0, 64), cutmix(1.0, 64)}),
              Batch(images, torch::arange(64)));
    EXPECT_EQ(count_threads(), before);
  }).join();
}

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
}  // namespace linkboy::testing::image_randomness_test
