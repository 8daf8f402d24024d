#include "linkboy/vision/image_folder.hpp"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "linkboy/vision/images.hpp"
#include "support/drop_root.hpp"
#include "support/expect_error.hpp"
#include "support/file_contents.hpp"
#include "support/image_files.hpp"
#include "support/temporary_folder.hpp"

namespace linkboy::vision::image_folder_test {
namespace {

using std::filesystem::create_directories;
using std::filesystem::create_directory_symlink;
using std::filesystem::create_symlink;

void expect_equal(const at::Tensor& found, const at::Tensor& expected) {
  EXPECT_TRUE(torch::equal(found, expected));
}

/// Writes a folder with two classes of images of different sizes.
struct ImageFolderTest : ::testing::Test {
  ImageFolderTest() {
    for (int64_t i = 0; i < 12; ++i) {
      const at::Tensor picture = make_picture(40 + 3 * i, 70 - 2 * i, i);
      write(c10::str(i % 3 == 0 ? "cats/" : "dogs/", i, ".jpg"), jpeg_bytes(picture));
    }
    write("dogs/x.png", png_bytes(make_picture(44, 61)));
  }

  void write(const std::string& name, const std::string& bytes) {
    create_directories((folder / name).parent_path());
    write_bytes(folder / name, bytes);
  }

  /// Returns all batches of an epoch.
  std::vector<Batch> epoch(const ImageFolderOptions& options, const DataLoaderOptions& loading,
                           int64_t epoch = 1) const {
    auto loader = make_data_loader(std::make_shared<ImageFolder>(folder.path(), options), loading);
    std::vector<Batch> batches;
    for (const Batch& batch : loader->batches(epoch)) batches.push_back(batch);
    return batches;
  }

  TemporaryFolder folder;
};

using Indices = std::vector<int64_t>;

/// Writes PNG files of these images as one class. They are named 0.png, 1.png, ...
void write_class(const TemporaryFolder& root, const std::vector<at::Tensor>& images) {
  create_directories(root / "a");
  for (std::size_t i = 0; i < images.size(); ++i) {
    write_bytes(root / c10::str("a/", i, ".png"), png_bytes(images[i]));
  }
}

constexpr std::array<int64_t, 3> kThree{0, 7, 12};
const ImageFolderOptions kCentreCrop{.resize = 20, .center_crop = 20};
const ImageFolderOptions kRandomCrop{.random_resized_crop = RandomResizedCrop{.size = {24, 32}}};

TEST_F(ImageFolderTest, NumbersSortedClassesAndListsTheirFiles) {
  const ImageFolder data(folder.path());
  EXPECT_EQ(data.classes(), (std::vector<std::string>{"cats", "dogs"}));
  EXPECT_EQ(data.class_to_idx(), (std::map<std::string, int64_t>{{"cats", 0}, {"dogs", 1}}));
  EXPECT_EQ(data.size(), 13);
  EXPECT_EQ(data.samples()[0].path, folder / "cats/0.jpg");
  EXPECT_EQ(data.samples()[4].path, folder / "dogs/1.jpg");
  EXPECT_EQ(data.samples()[4].label, 1);
  EXPECT_EQ(data.samples()[12].path, folder / "dogs/x.png");
}

TEST_F(ImageFolderTest, FindsSubFoldersLinksAndSuffixesInAnyCase) {
  const TemporaryFolder elsewhere;
  write_bytes(elsewhere / "far.jpeg", "");
  write("zebras/b/1.JPG", "");
  write("zebras/b-a/1.JpEg", "");
  write("zebras/b/c/é ß.png", "");
  write("zebras/notes.txt", "");
  write("zebras/jpg", "");
  create_directory_symlink(elsewhere.path(), folder / "zebras/away");
  create_symlink(elsewhere / "nothing", folder / "zebras/broken.png");
  create_directory_symlink(folder / "zebras/b", folder / "übung");
  write("readme.jpg", "");
  const ImageFolder data(folder.path());
  EXPECT_EQ(data.classes(), (std::vector<std::string>{"cats", "dogs", "zebras", "übung"}));
  std::vector<std::string> added;
  for (std::size_t i = 13; i < data.samples().size(); ++i) {
    added.push_back(data.samples()[i].path.lexically_relative(folder.path()).string());
  }
  EXPECT_EQ(added,
            (std::vector<std::string>{"zebras/broken.png", "zebras/away/far.jpeg", "zebras/b/1.JPG",
                                      "zebras/b-a/1.JpEg", "zebras/b/c/é ß.png", "übung/1.JPG",
                                      "übung/c/é ß.png"}));
}

TEST_F(ImageFolderTest, ABatchContainsResizedCentreCropsAndClasses) {
  ImageFolder data(folder.path(), {.resize = 30, .center_crop = ImageSize(24, 28)});
  const Batch batch = data.get_batch(kThree);
  EXPECT_EQ(batch.input().sizes(), (std::vector<int64_t>{3, 3, 24, 28}));
  EXPECT_EQ(batch.input().scalar_type(), torch::kByte);
  expect_equal(batch.target(), torch::tensor({0, 1, 1}, torch::kLong));
  const at::Tensor image = decode_image(folder / "cats/0.jpg");
  const at::Tensor resized = resize_image(image, size_with_shorter_side({40, 70}, 30));
  expect_equal(batch.input()[0], resized.narrow(1, 3, 24).narrow(2, 12, 28));
}

TEST_F(ImageFolderTest, ACentreCropWithoutResizeCopiesPixels) {
  ImageFolder data(folder.path(), {.center_crop = 40});
  const at::Tensor image = decode_image(folder / "cats/0.jpg");
  expect_equal(data.get_batch(kThree).input()[0], image.narrow(2, 15, 40));
}

TEST_F(ImageFolderTest, SamplesWithoutOptionsAreTheDecodedImages) {
  ImageFolder data(folder.path());
  const std::vector<Batch> samples = data.get_samples(kThree);
  expect_equal(samples[1].input(), decode_image(data.samples()[7].path));
  EXPECT_EQ(samples[1].target().item<int64_t>(), 1);
  EXPECT_EQ(samples[1].target().dim(), 0);
  EXPECT_ERROR(data.get_batch(kThree), "they must have the same shape. Set a collate_fn");
  EXPECT_EQ(data.get_batch({kThree.data(), 1}).input().dim(), 4);
}

TEST_F(ImageFolderTest, SamplesAreTheRowsOfTheBatch) {
  for (const ImageFolderOptions& options : {kCentreCrop, kRandomCrop}) {
    ImageFolder data(folder.path(), options);
    const TransformContext context{.seed = 5, .epoch = 3, .indices = kThree};
    const Batch batch = data.get_epoch_batch(context);
    const std::vector<Batch> samples = data.get_epoch_samples(context);
    for (int64_t i = 0; i < 3; ++i) expect_equal(samples[i].input(), batch.input()[i]);
  }
}

TEST_F(ImageFolderTest, TheNumberOfWorkersDoesNotChangeBatches) {
  for (const ImageFolderOptions& options : {kCentreCrop, kRandomCrop}) {
    DataLoaderOptions loading{.batch_size = 2, .shuffle = true, .num_workers = 0, .seed = 9};
    loading.transform = compose({random_horizontal_flip(), normalise({0.5}, {0.25})});
    const std::vector<Batch> expected = epoch(options, loading);
    EXPECT_EQ(expected.size(), 7);
    for (const int64_t num_workers : {1, 4}) {
      loading.num_workers = num_workers;
      const std::vector<Batch> found = epoch(options, loading);
      ASSERT_EQ(found.size(), expected.size());
      for (std::size_t i = 0; i < found.size(); ++i) {
        SCOPED_TRACE(c10::str("batch ", i));
        expect_equal(found[i].input(), expected[i].input());
        expect_equal(found[i].target(), expected[i].target());
      }
    }
  }
}

TEST_F(ImageFolderTest, RandomCropsDependOnlyOnSeedEpochAndIndex) {
  const auto equal = [&](const DataLoaderOptions& loading, std::size_t batch, const at::Tensor& to,
                         int64_t number = 1) {
    return torch::equal(epoch(kRandomCrop, loading, number)[batch].input(), to);
  };
  const at::Tensor images = epoch(kRandomCrop, {.batch_size = 13, .seed = 9})[0].input();
  EXPECT_TRUE(equal({.batch_size = 13, .seed = 9}, 0, images));
  EXPECT_FALSE(equal({.batch_size = 13, .seed = 9}, 0, images, /*number=*/2));
  EXPECT_TRUE(equal({.batch_size = 5, .seed = 9}, 1, images.narrow(0, 5, 5)));
  const at::Tensor first_five = images.narrow(0, 0, 5);
  EXPECT_FALSE(equal({.batch_size = 5, .seed = 10}, 0, first_five));
  EXPECT_TRUE(equal({.batch_size = 5, .seed = 9, .collate_fn = stack_samples}, 0, first_five));
}

// The relative area is uniform, and so is the logarithm of the ratio. Each pixel of the image
// encodes its row and column, so the cropped rectangle can be read from the result.
TEST_F(ImageFolderTest, RandomCropsHaveTheRequestedAreaAndRatio) {
  const TemporaryFolder one;
  const auto grid = torch::meshgrid({torch::arange(200), torch::arange(200)}, "ij");
  write_class(one, {torch::stack({grid[0], grid[1], grid[1] * 0}).to(torch::kByte)});
  ImageFolder data(one.path(), {.random_resized_crop = RandomResizedCrop{
                                    .size = 100, .scale = {0.2, 0.6}, .ratio = {0.5, 2.0}}});
  constexpr int64_t kNumEpochs = 300;
  double mean_area = 0.0;
  std::vector<double> ratios;
  for (int64_t epoch = 0; epoch < kNumEpochs; ++epoch) {
    const Indices first{0};
    const at::Tensor image = data.get_epoch_batch({1, epoch, first}).input()[0].to(torch::kDouble);
    const auto side = [&](int64_t channel) {
      return (image[channel].max() - image[channel].min()).item<double>() + 1.0;
    };
    const double area = side(0) * side(1) / 40000.0;
    EXPECT_GT(area, 0.18);
    EXPECT_LT(area, 0.62);
    mean_area += area / kNumEpochs;
    ratios.push_back(side(1) / side(0));
  }
  EXPECT_NEAR(mean_area, 0.4, 0.03);
  const auto [least, most] = std::minmax_element(ratios.begin(), ratios.end());
  EXPECT_GT(*least, 0.45);
  EXPECT_LT(*least, 0.6);
  EXPECT_GT(*most, 1.7);
  EXPECT_LT(*most, 2.2);
}

TEST_F(ImageFolderTest, ARandomCropThatNeverFitsIsTheLargestCentreCrop) {
  const TemporaryFolder one;
  const at::Tensor wide = make_picture(10, 90);
  const at::Tensor high = make_picture(90, 10);
  write_class(one, {wide, high});
  ImageFolder data(one.path(), {.random_resized_crop = RandomResizedCrop{
                                    .size = {10, 20}, .scale = {1.0, 1.0}, .ratio = {0.5, 2.0}}});
  const at::Tensor images = data.get_batch(Indices{0, 1}).input();
  expect_equal(images[0], wide.narrow(2, 35, 20));
  expect_equal(images[1], resize_image(high.narrow(1, 35, 20), {10, 20}));
}

TEST_F(ImageFolderTest, AnErrorOfAWorkerNamesTheFile) {
  const auto load = [&] { epoch({.center_crop = 30}, {.num_workers = 2}); };
  for (const std::string& bytes :
       {jpeg_bytes(make_picture(50, 50)), png_bytes(make_picture(50, 50))}) {
    write("dogs/5.jpg", bytes.substr(0, 900));
    EXPECT_ERROR_AS(CorruptFileError, load(), "dogs/5.jpg\" is damaged: ");
  }
  write("dogs/5.jpg", "text");
  EXPECT_ERROR(load(), "dogs/5.jpg\" is neither a JPEG nor a PNG file");
  std::filesystem::remove(folder / "dogs/5.jpg");
  create_symlink(folder / "nothing", folder / "dogs/5.jpg");
  EXPECT_ERROR_AS(FileError, load(), "dogs/5.jpg\" is missing. Restore the file");
}

TEST_F(ImageFolderTest, RefusesImagesOfUnsuitableSizes) {
  EXPECT_ERROR(epoch({.center_crop = ImageSize(40, 68)}, {.batch_size = 13}),
               "has 64 x 49 pixels, but center_crop needs 68 x 40");
  EXPECT_ERROR(epoch({.resize = 20, .center_crop = 21}, {}), "Use a larger resize or a smaller");
  ImageFolder enlarged(folder.path(), {.resize = 1 << 20});
  EXPECT_ERROR(enlarged.get_samples(kThree),
               "0.jpg\" would become 1835008 x 1048576 pixels; at most");
}

TEST_F(ImageFolderTest, RefusesIndicesOutOfRange) {
  ImageFolder data(folder.path(), {.resize = 8, .center_crop = 8});
  EXPECT_ERROR(data.get_batch(Indices{13}), "sample 13 of an ImageFolder of 13 was requested");
  EXPECT_ERROR(data.get_samples(Indices{13}), "it must be 0 to 12");
}

TEST_F(ImageFolderTest, RefusesFoldersThatAreNotClassesOfImages) {
  EXPECT_ERROR_AS(FileError, ImageFolder(folder / "none"),
                  "none\" of an ImageFolder does not exist");
  EXPECT_ERROR(ImageFolder(folder / "dogs/1.jpg"), "1.jpg\" of an ImageFolder does not exist");
  EXPECT_ERROR(ImageFolder(folder / "dogs"), "does not contain a folder; an ImageFolder needs one");
  write("empty/er/readme.txt", "");
  EXPECT_ERROR_AS(FileError, ImageFolder(folder.path()),
                  "empty\" has no .jpg, .jpeg or .png file. Add images");
}

TEST_F(ImageFolderTest, RefusesAFileWithoutReadPermission) {
  std::filesystem::permissions(folder / "dogs/1.jpg", std::filesystem::perms::none);
  const WithoutRootsRights scope(folder.path());
  ImageFolder data(".", {.center_crop = 30});
  EXPECT_ERROR_AS(FileError, data.get_batch(Indices{4}),
                  "1.jpg\" cannot be read: Permission denied. Make it");
}

TEST_F(ImageFolderTest, RefusesAFolderWithoutReadPermission) {
  create_directories(folder / "cats/secret");
  std::filesystem::permissions(folder / "cats/secret", std::filesystem::perms::none);
  const WithoutRootsRights scope(folder.path());
  EXPECT_ERROR_AS(FileError, ImageFolder("."),
                  "secret\" cannot be read: Permission denied. Make it readable");
}

TEST_F(ImageFolderTest, RefusesALinkToAFolderAboveIt) {
  create_directories(folder / "cats/more");
  create_directory_symlink(folder / "cats", folder / "cats/more/again");
  EXPECT_ERROR_AS(FileError, ImageFolder(folder.path()),
                  "again\" is a link to a folder above it. Remove");
}

TEST_F(ImageFolderTest, RefusesOptionsOutOfRange) {
  const auto make = [&](const ImageFolderOptions& options) { ImageFolder(folder.path(), options); };
  EXPECT_OPTION_ERROR(make({.resize = 0}), "resize is 0; it must be 1 to 1073741824 pixels");
  EXPECT_ERROR(make({.center_crop = ImageSize(0, 5)}), "center_crop's height is 0");
  EXPECT_ERROR(make({.center_crop = ImageSize(5, -1)}), "center_crop's width is -1");
  EXPECT_ERROR(make({.resize = 5, .random_resized_crop = kRandomCrop.random_resized_crop}),
               "cannot be combined with resize or center_crop");
  const auto crop = [&](const RandomResizedCrop& random) { make({.random_resized_crop = random}); };
  EXPECT_ERROR(crop({.size = {0, 5}}), "random_resized_crop's height is 0");
  EXPECT_ERROR(crop({.size = {5, 0}}), "random_resized_crop's width is 0");
  EXPECT_ERROR(crop({.size = 5, .scale = {0.0, 1.0}}), "scale is 0 to 1; both must be above 0");
  EXPECT_ERROR(crop({.size = 5, .scale = {0.5, 0.4}}), "the smaller value first");
  EXPECT_ERROR(crop({.size = 5, .scale = {0.5, 1.1}}), "scale is 0.5 to 1.1");
  EXPECT_ERROR(crop({.size = 5, .ratio = {0.0, 1.0}}), "ratio is 0 to 1; both must be above 0");
  EXPECT_ERROR(crop({.size = 5, .ratio = {2.0, 1.0}}), "ratio is 2 to 1");
}

}  // namespace
}  // namespace linkboy::vision::image_folder_test
