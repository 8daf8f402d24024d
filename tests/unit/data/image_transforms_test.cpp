// Image transforms: against slow references, their statistics, and what their numbers depend on.

#include "linkboy/data/image_transforms.hpp"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <cmath>
#include <filesystem>
#include <map>
#include <numeric>
#include <set>
#include <thread>

#include "support/expect_error.hpp"

namespace linkboy::testing::image_transforms_test {
namespace {

constexpr auto kBytes = torch::kByte;
constexpr auto kFloats = torch::kFloat;

/// Images whose pixels differ from each other and are never 0.
torch::Tensor counting_images(int64_t count, int64_t channels, int64_t height, int64_t width,
                              torch::ScalarType type) {
  const auto pixels = torch::arange(count * channels * height * width, torch::kLong);
  const auto values = type == kBytes ? pixels * 37 % 251 + 1 : pixels + 1;
  return values.to(type).reshape({count, channels, height, width});
}

std::vector<int64_t> first_indices(int64_t count) {
  std::vector<int64_t> indices(count);
  std::iota(indices.begin(), indices.end(), 0);
  return indices;
}

Batch result_of(const Transform& transform, Batch batch, uint64_t seed = 1, int64_t epoch = 1) {
  const auto indices = first_indices(batch.size());
  return transform(std::move(batch), {seed, epoch, indices});
}

torch::Tensor result_of(const Transform& transform, const torch::Tensor& images, uint64_t seed = 1,
                        int64_t epoch = 1) {
  return result_of(transform, Batch(images), seed, epoch).input();
}

bool same_bits(const torch::Tensor& a, const torch::Tensor& b) {
  return a.scalar_type() == b.scalar_type() && torch::equal(a, b);
}

/// In what every row of cells is of equal chance, this grows beyond 2 * cells about never.
double chi_square(const std::vector<double>& counts) {
  const double expected = std::accumulate(counts.begin(), counts.end(), 0.0) / counts.size();
  double sum = 0.0;
  for (const double count : counts) sum += (count - expected) * (count - expected) / expected;
  return sum;
}

struct Box {
  int64_t top, left, bottom, right;
  int64_t area() const { return (bottom - top) * (right - left); }
};

/// The least box around all true values of a [H, W] mask; empty if there are none.
Box box_of(const torch::Tensor& mask) {
  const auto places = mask.nonzero();
  if (places.size(0) == 0) return {0, 0, 0, 0};
  const auto least = std::get<0>(places.min(0));
  const auto most = std::get<0>(places.max(0));
  return {least[0].item<int64_t>(), least[1].item<int64_t>(), most[0].item<int64_t>() + 1,
          most[1].item<int64_t>() + 1};
}

torch::Tensor part_of(const torch::Tensor& image, const Box& box) {
  return image.slice(-2, box.top, box.bottom).slice(-1, box.left, box.right);
}

/// Where `crop` lies in `padded`; fails if it is nowhere.
std::pair<int64_t, int64_t> find_crop(const torch::Tensor& padded, const torch::Tensor& crop) {
  for (int64_t top = 0; top + crop.size(-2) <= padded.size(-2); ++top) {
    for (int64_t left = 0; left + crop.size(-1) <= padded.size(-1); ++left) {
      const Box box = {top, left, top + crop.size(-2), left + crop.size(-1)};
      if (torch::equal(part_of(padded, box), crop)) return {top, left};
    }
  }
  ADD_FAILURE() << "the crop is no part of the padded image";
  return {-1, -1};
}

class ImageTransformsTest : public ::testing::TestWithParam<torch::ScalarType> {
 public:
  // The references are many small steps: waiting for more threads costs more than they do.
  static void SetUpTestSuite() {
    num_threads_ = torch::get_num_threads();
    torch::set_num_threads(1);
  }
  static void TearDownTestSuite() { torch::set_num_threads(num_threads_); }

 private:
  static inline int num_threads_ = 0;
};
INSTANTIATE_TEST_SUITE_P(Types, ImageTransformsTest, ::testing::Values(kBytes, kFloats),
                         [](const auto& info) { return info.param == kBytes ? "uint8" : "float"; });

TEST_P(ImageTransformsTest, CropsWithinThePaddedImage) {
  const auto images = counting_images(40, 3, 7, 9, GetParam());
  const auto crops = result_of(random_crop({6, 8}, {.padding = 2}), images);
  ASSERT_EQ(crops.sizes(), (std::vector<int64_t>{40, 3, 6, 8}));
  ASSERT_EQ(crops.scalar_type(), GetParam());
  const auto padded = torch::constant_pad_nd(images, {2, 2, 2, 2}, 0);
  for (int64_t i = 0; i < 40; ++i) find_crop(padded[i], crops[i]);
}

TEST_P(ImageTransformsTest, CropMayBeLargerThanTheImageAndReachBeyondBothSides) {
  const auto images = counting_images(40, 2, 3, 4, GetParam());
  const auto crops = result_of(random_crop(9, {.padding = 6}), images);
  const auto padded = torch::constant_pad_nd(images, {6, 6, 6, 6}, 0);
  for (int64_t i = 0; i < 40; ++i) find_crop(padded[i], crops[i]);
}

TEST_P(ImageTransformsTest, CropOfTheImagesSizeWithoutPaddingIsTheImage) {
  const auto images = counting_images(5, 3, 6, 8, GetParam());
  EXPECT_TRUE(same_bits(result_of(random_crop({6, 8}), images), images));
}

TEST_P(ImageTransformsTest, CropShowsTheFillOfEachChannel) {
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
    // Rounding moves each side by half a pixel at most.
    const double height = box.bottom - box.top;
    const double width = box.right - box.left;
    EXPECT_GE((height + 0.5) * (width + 0.5), 0.05 * 600);
    EXPECT_LE((height - 0.5) * (width - 0.5), 0.3 * 600);
    EXPECT_GE((height + 0.5) / (width - 0.5), 0.5);
    EXPECT_LE((height - 0.5) / (width + 0.5), 2.0);
    auto expected = images[i].clone();
    part_of(expected[0], box).fill_(0);
    part_of(expected[1], box).fill_(255);
    EXPECT_TRUE(torch::equal(erased[i], expected));
  }
}

TEST_P(ImageTransformsTest, RectangleThatNeverFitsLeavesTheImageWhole) {
  const auto images = counting_images(20, 1, 8, 8, GetParam());
  EXPECT_TRUE(same_bits(result_of(random_erasing({.p = 1.0, .scale = {1, 1}}), images), images));
}

TEST_P(ImageTransformsTest, CutsASquareOutOfWhichPartsMayLieOutside) {
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
    auto expected = images[i].clone();
    part_of(expected[0], box).fill_(0);
    part_of(expected[1], box).fill_(253);
    EXPECT_TRUE(torch::equal(cut[i], expected));
  }
  EXPECT_EQ(corners.size(), 8U * 10U);  // three centres give the last row, and the last column
}

TEST_P(ImageTransformsTest, ImagesWithoutChannelDimensionStayThatWay) {
  const auto images = counting_images(10, 1, 8, 8, GetParam());
  const auto all = compose({random_crop(7, {.padding = 1}), random_horizontal_flip(), cutout(2),
                            normalise({0.5}, {0.5}), random_erasing({.noise = true})});
  const auto squeezed = result_of(all, images.squeeze(1));
  EXPECT_EQ(squeezed.sizes(), (std::vector<int64_t>{10, 7, 7}));
  EXPECT_TRUE(same_bits(squeezed, result_of(all, images).squeeze(1)));
}

TEST_P(ImageTransformsTest, AnyStridesAreTaken) {
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

TEST_P(ImageTransformsTest, NeverWritesToWhatItIsGiven) {
  const auto images = counting_images(6, 3, 8, 8, GetParam());
  const auto labels = torch::arange(6);
  const auto images_before = images.clone();
  for (const auto& transform :
       {random_crop(8), random_horizontal_flip(1.0), random_erasing({.p = 1.0}), cutout(3),
        normalise({0.0}, {1.0}), cutmix(1.0, 6), compose({normalise({0}, {1}), mixup(1.0, 6)})}) {
    const auto out = result_of(transform, Batch(images, labels));
    EXPECT_NE(out.input().const_data_ptr(), images.const_data_ptr());
    EXPECT_TRUE(torch::equal(images, images_before));
    EXPECT_TRUE(torch::equal(labels, torch::arange(6)));
  }
}

TEST_P(ImageTransformsTest, EmptyBatchStaysEmpty) {
  const auto images = counting_images(0, 3, 8, 8, GetParam());
  const auto out =
      result_of(compose({random_crop(6), normalise({0.0}, {1.0}), mixup(1.0, 5), cutmix(1.0, 5)}),
                Batch(images, torch::empty({0}, torch::kLong)));
  EXPECT_EQ(out.input().sizes(), (std::vector<int64_t>{0, 3, 6, 6}));
  EXPECT_EQ(out.target().sizes(), (std::vector<int64_t>{0, 5}));
}

// ---- One pass, or one after the other -------------------------------------------------------

Batch do_nothing(Batch batch, const TransformContext&) { return batch; }

/// The same transforms, each kept from being fused with the next.
Transform apart(const std::vector<Transform>& transforms) {
  std::vector<Transform> all;
  for (const auto& transform : transforms) {
    all.push_back(transform);
    all.emplace_back(do_nothing);
  }
  return compose(all);
}

TEST_P(ImageTransformsTest, FusedEqualsUnfusedInEveryBit) {
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
      {cut, cut, erase, erase, flip, flip, crop, small_crop},
  };
  const auto images = torch::randint(256, {64, 3, 10, 11}).to(GetParam());
  for (std::size_t i = 0; i < combinations.size(); ++i) {
    const auto fused = result_of(compose(combinations[i]), images);
    EXPECT_TRUE(same_bits(fused, result_of(apart(combinations[i]), images))) << "combination " << i;
    EXPECT_TRUE(fused.is_contiguous());
  }
}

TEST_P(ImageTransformsTest, ComposedTransformsGiveWhatTheyGiveAlone) {
  const auto images = torch::randint(256, {32, 3, 10, 10}).to(GetParam());
  const std::vector<Transform> transforms = {
      random_crop(9, {.padding = 2}), random_horizontal_flip(), cutout(3), normalise({0.5}, {0.25}),
      random_erasing({.p = 0.5, .noise = true})};
  auto one_by_one = images;
  for (const auto& transform : transforms) one_by_one = result_of(transform, one_by_one);
  EXPECT_TRUE(same_bits(result_of(compose(transforms), images), one_by_one));
}

TEST(ComposeTest, TakesLambdasAndKeepsTheOrder) {
  const auto add_ten = [](Batch batch, const TransformContext&) {
    batch.set("input", batch.input() + 10);
    return batch;
  };
  const auto images = torch::zeros({2, 1, 3, 3});
  const auto ten_first = result_of(compose({add_ten, normalise({0.0}, {2.0})}), images);
  const auto ten_last = result_of(compose({normalise({0.0}, {2.0}), add_ten}), images);
  EXPECT_TRUE(torch::equal(ten_first, torch::full_like(images, 5)));
  EXPECT_TRUE(torch::equal(ten_last, torch::full_like(images, 10)));
}

TEST(ComposeTest, ComposeInsideOfComposeCountsAsItsParts) {
  const auto images = counting_images(64, 3, 8, 8, kBytes);
  const auto flip = random_horizontal_flip();
  const auto crop = random_crop(8, {.padding = 2});
  const auto flat = result_of(compose({flip, crop, flip, crop}), images);
  EXPECT_TRUE(same_bits(flat, result_of(compose({compose({flip, crop}), flip, crop}), images)));
  EXPECT_TRUE(
      same_bits(flat, result_of(compose({compose({flip, crop}), compose({flip, crop})}), images)));
}

TEST(ComposeTest, OfNothingLeavesTheBatchAsItIs) {
  const auto text = torch::arange(4, torch::kDouble);
  EXPECT_TRUE(same_bits(result_of(compose({}), text), text));
}

TEST(ComposeTest, LeavesOtherTensorsAlone) {
  const Batch batch{{"pixels", counting_images(3, 1, 4, 4, kBytes)}, {"name", torch::arange(3)}};
  const auto out = result_of(compose({random_horizontal_flip(), normalise({0.0}, {1.0})}), batch);
  EXPECT_EQ(out["pixels"].scalar_type(), kFloats);
  EXPECT_TRUE(torch::equal(out["name"], torch::arange(3)));
}

// ---- Random numbers ---------------------------------------------------------------------------

TEST(ImageRandomnessTest, CropOffsetsAreUniform) {
  // 25 places, 24 degrees of freedom: 60 would be a chance of one in 15,000.
  constexpr int64_t kCount = 5'000;
  const auto image = counting_images(1, 1, 6, 6, kFloats);
  const auto padded = torch::constant_pad_nd(image[0], {2, 2, 2, 2}, 0);
  const auto crops = result_of(random_crop(6, {.padding = 2}), image.expand({kCount, 1, 6, 6}));
  // A pixel that every crop shows tells where the crop lies.
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
  const auto changed = (result_of(transform, images) != images).flatten(1).any(1);
  return changed.to(kFloats).mean().item<double>();
}

TEST(ImageRandomnessTest, ProbabilitiesAreAsAskedFor) {
  // Four standard deviations of 20,000 samples are at most 0.014.
  EXPECT_NEAR(rate_of_change(random_horizontal_flip()), 0.5, 0.014);
  EXPECT_NEAR(rate_of_change(random_horizontal_flip(0.1)), 0.1, 0.014);
  EXPECT_NEAR(rate_of_change(random_erasing({.p = 0.25, .scale = {0.1, 0.2}})), 0.25, 0.014);
}

TEST(ImageRandomnessTest, SecondTransformOfAKindHasItsOwnNumbers) {
  // With the same numbers two flips would leave every image as it is.
  const auto flip = random_horizontal_flip();
  EXPECT_NEAR(rate_of_change(compose({flip, flip})), 0.5, 0.014);
  EXPECT_NEAR(rate_of_change(compose({compose({flip}), do_nothing, flip})), 0.5, 0.014);
}

TEST(ImageRandomnessTest, DifferentKindsAreIndependent) {
  // Flipped, and moved to the left of the middle: a quarter each.
  constexpr int64_t kCount = 20'000;
  const auto images = torch::arange(1, 9, kFloats).expand({kCount, 1, 4, 8});
  const auto flipped = result_of(random_horizontal_flip(), images).select(-1, 0).flatten(1) == 8;
  const auto left = result_of(random_crop({4, 5}), images).select(-1, 0).flatten(1) <= 2;
  const auto both = flipped.select(1, 0).logical_and(left.select(1, 0));
  EXPECT_NEAR(both.to(kFloats).mean().item<double>(), 0.25, 0.013);
}

TEST(ImageRandomnessTest, NoiseIsStandardNormal) {
  const auto images = torch::full({500, 3, 16, 16}, 100.0F);
  const auto noisy = result_of(random_erasing({.p = 1.0, .noise = true}), images);
  const auto noise = noisy.masked_select(noisy != 100.0F).to(torch::kDouble);
  ASSERT_GT(noise.numel(), 20'000);
  EXPECT_NEAR(noise.mean().item<double>(), 0.0, 0.03);
  EXPECT_NEAR(noise.std().item<double>(), 1.0, 0.03);
  EXPECT_NEAR(noise.pow(4).mean().item<double>(), 3.0, 0.3);
}

Transform everything() {
  return compose({random_crop(8, {.padding = 2}), random_horizontal_flip(), cutout(2),
                  normalise({0.5}, {0.25}), random_erasing({.noise = true})});
}

TEST(ImageRandomnessTest, SameSeedAndEpochGiveTheSameAndOthersDoNot) {
  const auto images = counting_images(30, 3, 8, 8, kBytes);
  EXPECT_TRUE(
      same_bits(result_of(everything(), images, 5, 2), result_of(everything(), images, 5, 2)));
  EXPECT_FALSE(
      same_bits(result_of(everything(), images, 5, 2), result_of(everything(), images, 5, 3)));
  EXPECT_FALSE(
      same_bits(result_of(everything(), images, 5, 2), result_of(everything(), images, 6, 2)));
}

TEST(ImageRandomnessTest, NoSeedWithAnEpochStandsForAnother) {
  const auto images = torch::arange(2, kFloats).expand({64, 1, 1, 2});
  std::set<std::string> patterns;
  for (const uint64_t seed : {0, 1, 2, 3, 4, 5, 6, 7, -1, -2}) {
    for (int64_t epoch = 0; epoch < 10; ++epoch) {
      const auto flips = result_of(random_horizontal_flip(), images, seed, epoch).contiguous();
      std::string pattern;
      for (int64_t i = 0; i < 64; ++i) pattern += flips[i][0][0][0].item<float>() > 0 ? '1' : '0';
      patterns.insert(pattern);
    }
  }
  EXPECT_EQ(patterns.size(), 100U);
}

TEST(ImageRandomnessTest, NumbersAreHeldForGood) {
  // A resumed run of an older version must see the same images.
  const auto images = torch::arange(9, kFloats).expand({6, 1, 1, 9});
  const auto seen =
      result_of(compose({random_crop({1, 4}), random_horizontal_flip()}), images, 42, 3);
  std::vector<int64_t> ends;
  for (int64_t i = 0; i < 6; ++i) {
    for (const int64_t x : {0, 3}) ends.push_back(seen[i][0][0][x].item<int64_t>());
  }
  EXPECT_EQ(ends, (std::vector<int64_t>{8, 5, 3, 0, 5, 2, 8, 5, 5, 2, 2, 5}));
}

/// What each sample of a shuffled epoch becomes.
std::map<int64_t, torch::Tensor> epoch_of(const Transform& transform, int64_t num_workers,
                                          int64_t batch_size, bool shuffle) {
  const int64_t count = 41;
  auto loader = make_data_loader(
      TensorDataset(counting_images(count, 3, 8, 8, kBytes), torch::arange(count)),
      {.batch_size = batch_size,
       .shuffle = shuffle,
       .num_workers = num_workers,
       .seed = 3,
       .transform = compose({transform, [](Batch batch, const TransformContext& context) {
                               const std::vector<int64_t> rows(context.indices.begin(),
                                                               context.indices.end());
                               batch.set("index", torch::tensor(rows));
                               return batch;
                             }})});
  std::map<int64_t, torch::Tensor> images;
  auto batches = loader->iterate(2);
  while (const auto batch = batches->next()) {
    for (int64_t i = 0; i < batch->size(); ++i) {
      images[(*batch)["index"][i].item<int64_t>()] = batch->input()[i];
    }
  }
  EXPECT_EQ(static_cast<int64_t>(images.size()), count);
  return images;
}

void expect_same(const std::map<int64_t, torch::Tensor>& a,
                 const std::map<int64_t, torch::Tensor>& b) {
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
  // In a thread of its own, as a loader's worker: OpenMP would make a new team for it.
  std::thread([&] {
    const auto before = count_threads();
    result_of(compose({everything(), mixup(1.0, 64), cutmix(1.0, 64)}),
              Batch(images, torch::arange(64)));
    EXPECT_EQ(count_threads(), before);
  }).join();
}

// ---- Mixing -----------------------------------------------------------------------------------

/// With a class of its own for each sample, the targets tell who was mixed, and how much.
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

TEST(MixupTest, ImagesAndTargetsAreMixedAlike) {
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

TEST(MixupTest, WeightsAreFromTheBetaDistribution) {
  const auto images = torch::zeros({4'000, 1, 1, 1});
  const auto own_class = torch::zeros({4'000}, torch::kLong);
  for (const double alpha : {0.001, 0.2, 1.0, 4.0}) {
    auto halves = images.clone();
    halves.slice(0, 0, 2'000).fill_(1.0F);
    const auto mixed = result_of(mixup(alpha, 1), Batch(halves, own_class)).input().flatten();
    // A 1 whose partner is a 0 becomes its weight; so does half of the 1s.
    const auto weights = mixed.slice(0, 0, 2'000).to(torch::kDouble);
    EXPECT_FALSE(weights.isnan().any().item<bool>());
    // E = (1 + 1/2) / 2, E of squares = (1 + 1/4 + variance) / 2.
    const double variance = 1.0 / (4.0 * (2.0 * alpha + 1.0));
    EXPECT_NEAR(weights.mean().item<double>(), 0.75, 0.05) << alpha;
    EXPECT_NEAR(weights.pow(2).mean().item<double>(), (1.25 + variance) / 2.0, 0.05) << alpha;
  }
}

TEST(MixupTest, EveryOtherSampleIsThePartnerEquallyOften) {
  // 6 x 5 pairs, 24 degrees of freedom; 60 would be a chance of one in 15,000.
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

TEST_P(ImageTransformsTest, CutmixTakesARectangleAndItsShareOfTheTarget) {
  const auto images = counting_images(200, 2, 9, 7, GetParam());
  const auto mixed = result_of(cutmix(1.0, 200), Batch(images, torch::arange(200)));
  ASSERT_EQ(mixed.input().scalar_type(), GetParam());
  int64_t num_mixed = 0;
  for (int64_t i = 0; i < 200; ++i) {
    const auto [weight, partner] = read_target(mixed.target()[i], i);
    const auto image = mixed.input()[i];
    num_mixed += partner != i;
    if (partner == i) {
      EXPECT_TRUE(torch::equal(image, images[i]));
      continue;
    }
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

TEST(MixupTest, SomeSamplesStayAsTheyAreWithAProbability) {
  const auto images = torch::randn({4'000, 1, 2, 2});
  const auto labels = torch::arange(4'000) % 2;
  for (const double p : {0.0, 0.3, 1.0}) {
    const auto mixed = result_of(mixup(4.0, 2, {.p = p}), Batch(images, labels));
    const auto changed = (mixed.input() != images).flatten(1).any(1);
    EXPECT_NEAR(changed.to(kFloats).mean().item<double>(), p, 0.03);
    const auto kept = changed.logical_not().nonzero().flatten();
    const auto classes = torch::one_hot(labels, 2).to(kFloats);
    EXPECT_TRUE(torch::equal(mixed.target().index_select(0, kept), classes.index_select(0, kept)));
  }
}

TEST(MixupTest, ASampleAloneInItsBatchStaysAsItIs) {
  const auto image = torch::randn({1, 3, 4, 4});
  for (const auto& transform : {mixup(1.0, 3), cutmix(1.0, 3)}) {
    const auto out = result_of(transform, Batch(image, torch::tensor({2}, torch::kLong)));
    EXPECT_TRUE(torch::equal(out.input(), image));
    EXPECT_TRUE(torch::allclose(out.target(), torch::tensor({{0.F, 0.F, 1.F}})));
  }
}

TEST(MixupTest, TargetsOfAnyIntegerTypeOrProbabilitiesAreTaken) {
  const auto images = torch::randn({5, 1, 2, 2});
  const auto labels = torch::arange(5) % 3;
  const auto expected = result_of(mixup(1.0, 3), Batch(images, labels)).target();
  for (const auto& target :
       {labels.to(torch::kInt), labels.to(kBytes), torch::one_hot(labels, 3).to(kFloats),
        torch::one_hot(labels, 3).to(kFloats).t().contiguous().t()}) {
    EXPECT_TRUE(same_bits(result_of(mixup(1.0, 3), Batch(images, target)).target(), expected));
  }
}

// ---- Errors -----------------------------------------------------------------------------------

TEST(ImageErrorsTest, RejectsOptionsOutOfTheirRange) {
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

TEST(ImageErrorsTest, RejectsWhatIsNoImage) {
  const auto flip = random_horizontal_flip();
  EXPECT_ERROR(result_of(flip, torch::zeros({2, 3})),
               "is of shape [2, 3]; images must be [N, C, H, W]");
  EXPECT_ERROR(result_of(flip, torch::zeros({1, 1, 1, 1, 1})), "is of shape [1, 1, 1, 1, 1]");
  EXPECT_ERROR(flip(Batch(torch::Tensor()), {1, 1, {}}), "first tensor is undefined");
  EXPECT_ERROR(result_of(flip, torch::zeros({2, 1, 3, 3}, torch::kDouble)),
               "the images are Double");
  EXPECT_ERROR(result_of(flip, torch::zeros({2, 1, 3, 3}).to_sparse()), "on cpu, Sparse");
  EXPECT_ERROR(result_of(flip, torch::zeros({2, 1, 3, 3}, torch::kMeta)), "on meta");
  EXPECT_ERROR(result_of(flip, torch::zeros({2, 1, 0, 3})), "the images are 0 x 3");
  const std::vector<int64_t> one = {0};
  EXPECT_ERROR(flip(Batch(torch::zeros({2, 1, 3, 3})), {1, 1, one}),
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
  EXPECT_ERROR(result_of(random_erasing({.noise = true}), bytes), "noise is asked for, but");
}

TEST(ImageErrorsTest, RejectsTargetsThatCannotBeMixed) {
  const auto images = torch::zeros({2, 1, 3, 3});
  EXPECT_ERROR(result_of(mixup(1.0, 3), Batch(images.to(kBytes), torch::arange(2))),
               "mixup: the images are uint8");
  EXPECT_ERROR(result_of(mixup(1.0, 3), Batch(images)), "the batch has no target");
  EXPECT_ERROR(result_of(cutmix(1.0, 3), Batch(images, torch::Tensor())),
               "cutmix: the target is not a tensor on the CPU");
  EXPECT_ERROR(result_of(mixup(1.0, 3), Batch(images, torch::tensor({0, 3}, torch::kLong))),
               "mixup: sample 1 of the batch has class 3; classes must be 0 to 2");
  EXPECT_ERROR(result_of(mixup(1.0, 3), Batch(images, torch::tensor({-1, 0}, torch::kLong))),
               "sample 0 of the batch has class -1");
  EXPECT_ERROR(result_of(cutmix(1.0, 3), Batch(images, torch::zeros({2}))),
               "cutmix: the target is Float of shape [2]; it must be integer classes");
  EXPECT_ERROR(result_of(cutmix(1.0, 3), Batch(images, torch::zeros({2, 4}))), "of shape [2, 4]");
  EXPECT_ERROR(result_of(cutmix(1.0, 3), Batch(images, torch::arange(3))), "Long of shape [3]");
}

}  // namespace
}  // namespace linkboy::testing::image_transforms_test
