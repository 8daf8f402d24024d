#include <gtest/gtest.h>
#include <torch/optim/sgd.h>
#include <torch/types.h>
#include <torch/utils.h>

#include <cmath>
#include <map>
#include <string>

#include <linkboy/run/run_config.hpp>

#include "recipe.hpp"
#include "shapes.hpp"
#include "support/expect_error.hpp"
#include "support/file_contents.hpp"
#include "support/temporary_folder.hpp"

namespace cifar10::cifar10_test {
namespace {

using linkboy::TemporaryFolder;
using linkboy::write_bytes;
using linkboy::vision::Split;

std::filesystem::path train_path(const std::filesystem::path& folder, int64_t number) {
  return folder / c10::str("data_batch_", number, ".bin");
}

TEST(Cifar10ShapesTest, WritesFilesThatTheReaderReads) {
  const TemporaryFolder folder;
  write_shapes(folder / "a/b", {.num_train_images = 23, .num_test_images = 11});
  const Images train = read_images(folder / "a/b", Split::train);
  const Images test = read_images(folder / "a/b", Split::test);
  EXPECT_EQ(train.images.size(0), 23);
  EXPECT_EQ(test.images.size(0), 11);
  EXPECT_TRUE(torch::equal(train.labels, torch::arange(23) % 10));
  EXPECT_TRUE(torch::equal(test.labels, torch::arange(11) % 10));
}

TEST(Cifar10RecipeTest, MissingDataIsAnErrorThatSaysWhereToGetIt) {
  const TemporaryFolder folder;
  EXPECT_THROW(read_images(folder / "none", Split::train), linkboy::FileError);
  EXPECT_ERROR(read_images(folder / "none", Split::test), "does not exist. Unpack https:");
  EXPECT_ERROR(read_images(folder / "none", Split::test),
               " Name the folder with --data, or write a small dataset with make_cifar10.");
}

TEST(Cifar10ShapesTest, DrawsEachImageDifferently) {
  const TemporaryFolder folder;
  write_shapes(folder.path(), {.num_train_images = 50, .num_test_images = 10});
  const auto classes = read_images(folder.path(), Split::train).images.view({5, 10, 3, 32, 32});
  const auto test = read_images(folder.path(), Split::test).images;
  for (int64_t file = 0; file < 5; ++file) {
    EXPECT_FALSE(torch::equal(classes[file], classes[(file + 1) % 5]));
    EXPECT_FALSE(torch::equal(classes[file], test));
  }
}

TEST(Cifar10ShapesTest, OnlyTheSameSeedGivesTheSameBytes) {
  const TemporaryFolder folder;
  for (const auto& [name, seed] : std::map<std::string, uint64_t>{
           {"first", 1}, {"again", 1}, {"other", 2}, {"far", 1 + (uint64_t{1} << 32)}}) {
    write_shapes(folder / name, {.num_train_images = 5, .num_test_images = 2, .seed = seed});
  }
  const auto bytes = [&](const char* name) {
    return linkboy::read_bytes(train_path(folder / name, 2));
  };
  EXPECT_EQ(bytes("first"), bytes("again"));
  EXPECT_NE(bytes("first"), bytes("other"));
  EXPECT_NE(bytes("first"), bytes("far"));
}

TEST(Cifar10ShapesTest, KeepsFilesWithOtherContents) {
  const TemporaryFolder folder;
  const ShapesOptions options{.num_train_images = 5, .num_test_images = 1};
  write_shapes(folder.path(), options);
  write_shapes(folder.path(), options);
  const auto path = train_path(folder.path(), 3);
  write_bytes(path, "precious");
  EXPECT_ERROR(write_shapes(folder.path(), options),
               "exists with other content and is not overwri");
  EXPECT_EQ(linkboy::read_bytes(path), "precious");
}

TEST(Cifar10ShapesTest, RefusesOptionsThatTheFormatCannotHold) {
  const TemporaryFolder folder;
  EXPECT_ERROR(write_shapes(folder.path(), {.num_train_images = 4}), "must be at least 5");
  EXPECT_ERROR(write_shapes(folder.path(), {.num_test_images = 0}), "must be at least 1");
  EXPECT_TRUE(folder.names().empty());
  write_bytes(folder / "file", "");
  EXPECT_ERROR(write_shapes(folder / "file/folder", {}), "cannot be created: Not a directory");
  // The target of a dangling link does not exist, and cannot be created either.
  std::filesystem::create_symlink(folder / "no/where", train_path(folder.path(), 1));
  EXPECT_ERROR(write_shapes(folder.path(), {}), "cannot be written: No such file or directory");
}

TEST(Cifar10RecipeTest, DropsALastBatchOfASingleImage) {
  for (const auto& [count, is_left_out] :
       std::map<int64_t, bool>{{33, true}, {65, true}, {32, false}, {34, false}, {31, false}}) {
    const Images images{torch::empty({count, 3, 32, 32}, torch::kUInt8), torch::zeros(count)};
    EXPECT_EQ(train_loader_options({.batch_size = 32}, images).drop_last, is_left_out) << count;
  }
}

/// Returns the recipe that these arguments select.
Recipe recipe_of(const linkboy::cli::Arguments& arguments) {
  return read_recipe("program", "Does something.", arguments);
}

TEST(Cifar10RecipeTest, LearningRateFollowsACosineEpochByEpoch) {
  const auto settings = recipe_of({"--lr", "0.2"}).settings;
  const auto optimizer = settings.make_optimizer({torch::zeros(1, torch::requires_grad())});
  const linkboy::RunConfig config{.num_epochs = 4, .num_updates_per_epoch = 3};
  const auto scheduler = settings.make_scheduler_fn()(*optimizer, config);
  for (int64_t update = 0; update < 12; ++update) {
    const int64_t epoch = update / 3;
    EXPECT_NEAR(scheduler->values_at(update).front(), 0.1 * (1.0 + std::cos(M_PI * epoch / 4.0)),
                1e-12);
  }
}

TEST(Cifar10RecipeTest, DefaultsAreThoseOfTheTutorial) {
  const auto recipe = recipe_of({});
  EXPECT_EQ(recipe.depth, 34);
  EXPECT_EQ(recipe.settings.train.num_epochs, 200);
  EXPECT_EQ(recipe.settings.train_dataloader.batch_size, 128);
  EXPECT_EQ(recipe.settings.eval_dataloader.even_batches, false) << "each image is tested once";
  const auto optimizer = recipe.settings.make_optimizer({torch::zeros(1)});
  const auto& sgd = static_cast<const torch::optim::SGDOptions&>(optimizer->defaults());
  EXPECT_EQ(sgd.lr(), 0.1);
  EXPECT_EQ(sgd.momentum(), 0.9);
  EXPECT_EQ(sgd.weight_decay(), 5e-4);
}

TEST(Cifar10RecipeTest, RefusesInvalidOptions) {
  EXPECT_ERROR(recipe_of({"--depth", "50"}), "must be 18 or 34");
  EXPECT_ERROR(recipe_of({"--test-interval", "0"}), "must be at least 1");
  EXPECT_ERROR(recipe_of({"--precision", "fp8"}), "must be one of fp32, bf16, fp16");
}

}  // namespace
}  // namespace cifar10::cifar10_test
