// Tests that the random numbers of image transforms depend only on the seed, the epoch and the
// sample.

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

TEST(ImageRandomnessTest, OnlyTheSameSeedAndEpochGiveTheSameImages) {
  const auto images = counting_images(30, 3, 8, 8, kBytes);
  const auto expected = result_of(everything(), images, 5, 2);
  EXPECT_TRUE(same_bits(result_of(everything(), images, 5, 2), expected));
  EXPECT_FALSE(same_bits(result_of(everything(), images, 5, 3), expected));
  EXPECT_FALSE(same_bits(result_of(everything(), images, 6, 2), expected));
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

}  // namespace
}  // namespace linkboy::testing::image_randomness_test
