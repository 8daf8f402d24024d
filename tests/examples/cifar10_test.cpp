#include "cifar10.hpp"

#include <ATen/core/grad_mode.h>
#include <gtest/gtest.h>
#include <torch/optim/sgd.h>
#include <torch/types.h>
#include <torch/utils.h>
#include <unistd.h>

#include <cmath>
#include <linkboy/checkpoint/state_dict.hpp>
#include <linkboy/model.hpp>
#include <linkboy/run/run_config.hpp>
#include <map>
#include <string>
#include <vector>

#include "parts/resnet.hpp"
#include "recipe.hpp"
#include "shapes.hpp"
#include "support/expect_error.hpp"
#include "support/file_contents.hpp"
#include "support/temporary_folder.hpp"

namespace cifar10::cifar10_test {
namespace {

using linkboy::TemporaryFolder;
using linkboy::write_bytes;

/// A record whose planes are of one value each.
std::string record(char label, char red, char green, char blue) {
  return label + std::string(1024, red) + std::string(1024, green) + std::string(1024, blue);
}

/// A folder with two images in each file, to be spoilt.
struct Cifar10Test : ::testing::Test {
  Cifar10Test() {
    for (char number = 1; number <= 5; ++number) {
      write_bytes(train_path(folder.path(), number),
                  record(number, number, 0, 0) + record(9, 0, number, '\xff'));
    }
    write_bytes(test_path(folder.path()), record(0, 1, 2, 3) + record(7, 4, 5, 6));
  }

  TemporaryFolder folder;
};

TEST_F(Cifar10Test, ReadsTheFiveTrainingFilesInTheirOrder) {
  const Images images = read_train_images(folder.path());
  EXPECT_EQ(images.pixels.sizes(), (std::vector<int64_t>{10, 3, 32, 32}));
  EXPECT_EQ(images.pixels.scalar_type(), torch::kUInt8);
  EXPECT_TRUE(
      torch::equal(images.labels, torch::tensor({1, 9, 2, 9, 3, 9, 4, 9, 5, 9}, torch::kLong)));
  EXPECT_TRUE(torch::equal(images.pixels.select(2, 31).select(2, 0)[5],
                           torch::tensor({0, 3, 255}, torch::kUInt8)));
}

TEST_F(Cifar10Test, ReadsPixelsAsPlanesRowByRow) {
  std::string image = record(3, 0, 0, 0);
  image[1 + 1024 + 32 * 5 + 6] = '\xc8';
  write_bytes(test_path(folder.path()), image);
  const Images images = read_test_images(folder.path());
  EXPECT_EQ(images.pixels[0][1][5][6].item<int64_t>(), 200);
  EXPECT_EQ(images.pixels.sum().item<int64_t>(), 200);
}

TEST_F(Cifar10Test, RefusesAFileThatIsMissingOrNoFile) {
  std::filesystem::remove(train_path(folder.path(), 4));
  EXPECT_ERROR(read_train_images(folder.path()), "data_batch_4.bin\" is missing. Unpack https:");
  std::filesystem::create_directory(train_path(folder.path(), 4));
  EXPECT_ERROR(read_train_images(folder.path()), "data_batch_4.bin\" is not a file. Restore");
}

/// While it lives, root may read no more files than others. The working folder is `folder`, since
/// those above it may be closed to others.
struct WithoutRootsRights {
  explicit WithoutRootsRights(const std::filesystem::path& folder) {
    std::filesystem::permissions(folder, std::filesystem::perms(0755));
    std::filesystem::current_path(folder);
    EXPECT_EQ(::seteuid(user == 0 ? 65534 : user), 0);
  }
  ~WithoutRootsRights() {
    EXPECT_EQ(::seteuid(user), 0);
    std::filesystem::current_path(working_folder);
  }
  const uid_t user = ::geteuid();
  const std::filesystem::path working_folder = std::filesystem::current_path();
};

TEST_F(Cifar10Test, RefusesAFileThatCannotBeRead) {
  std::filesystem::permissions(test_path(folder.path()), std::filesystem::perms::none);
  const WithoutRootsRights scope(folder.path());
  EXPECT_ERROR(read_test_images("."), "cannot be read: Permission denied. Restore");
}

TEST_F(Cifar10Test, RefusesAnEmptyFile) {
  write_bytes(test_path(folder.path()), "");
  EXPECT_ERROR(read_test_images(folder.path()), "test_batch.bin\" is empty. Restore the file");
}

TEST_F(Cifar10Test, RefusesAFileThatEndsWithinARecord) {
  write_bytes(test_path(folder.path()), record(1, 2, 3, 4) + "x");
  EXPECT_ERROR(read_test_images(folder.path()),
               "has 3074 bytes; it must be whole records of 3073 bytes");
}

TEST_F(Cifar10Test, RefusesALabelAboveNine) {
  write_bytes(test_path(folder.path()), record(1, 2, 3, 4) + record(10, 2, 3, 4));
  EXPECT_ERROR(read_test_images(folder.path()),
               "has the label 10 for image 1; labels must be 0 to 9. Restore");
}

TEST_F(Cifar10Test, SaysWhereTheDataComeFromIfThereIsNoFolder) {
  EXPECT_ERROR(read_train_images(folder / "none"), "none\" does not exist. Unpack https:");
  EXPECT_ERROR(read_test_images(folder / "none"), "make a small set with make_cifar10");
}

TEST_F(Cifar10Test, KnowsTheFolderAboveAndThePythonVersion) {
  const TemporaryFolder other;
  std::filesystem::create_directory(other / "cifar-10-batches-bin");
  EXPECT_ERROR(read_train_images(other.path()), "cifar-10-batches-bin\" with --data.");
  write_bytes(folder / "batches.meta", "");
  EXPECT_ERROR(read_train_images(folder.path()), "the binary version is read. Unpack https:");
}

TEST(Cifar10ShapesTest, WritesWhatTheReaderReads) {
  const TemporaryFolder folder;
  write_shapes(folder / "a/b", {.num_train_images = 23, .num_test_images = 11});
  const Images train = read_train_images(folder / "a/b");
  const Images test = read_test_images(folder / "a/b");
  EXPECT_EQ(train.pixels.size(0), 23);
  EXPECT_EQ(test.pixels.size(0), 11);
  EXPECT_TRUE(torch::equal(train.labels, torch::arange(23) % 10));
  EXPECT_TRUE(torch::equal(test.labels, torch::arange(11) % 10));
}

TEST(Cifar10ShapesTest, DrawsEachImageAnew) {
  const TemporaryFolder folder;
  write_shapes(folder.path(), {.num_train_images = 50, .num_test_images = 10});
  const auto classes = read_train_images(folder.path()).pixels.view({5, 10, 3, 32, 32});
  const auto test = read_test_images(folder.path()).pixels;
  for (int64_t file = 0; file < 5; ++file) {
    EXPECT_FALSE(torch::equal(classes[file], classes[(file + 1) % 5]));
    EXPECT_FALSE(torch::equal(classes[file], test));
  }
}

TEST(Cifar10ShapesTest, GivesTheSameBytesForTheSameSeedAlone) {
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

TEST(Cifar10ShapesTest, LeavesFilesThatHoldSomethingElse) {
  const TemporaryFolder folder;
  const ShapesOptions options{.num_train_images = 5, .num_test_images = 1};
  write_shapes(folder.path(), options);
  write_shapes(folder.path(), options);
  const auto path = train_path(folder.path(), 3);
  write_bytes(path, "precious");
  EXPECT_ERROR(write_shapes(folder.path(), options), "holds something else; it is left as it is");
  EXPECT_EQ(linkboy::read_bytes(path), "precious");
}

TEST(Cifar10ShapesTest, RefusesWhatItCannotWrite) {
  const TemporaryFolder folder;
  EXPECT_ERROR(write_shapes(folder.path(), {.num_train_images = 4}), "must be at least 5");
  EXPECT_ERROR(write_shapes(folder.path(), {.num_test_images = 0}), "must be at least 1");
  EXPECT_TRUE(folder.names().empty());
  write_bytes(folder / "file", "");
  EXPECT_ERROR(write_shapes(folder / "file/folder", {}), "cannot be made: Not a directory");
  // A link to nowhere does not exist, and cannot be made either.
  std::filesystem::create_symlink(folder / "no/where", train_path(folder.path(), 1));
  EXPECT_ERROR(write_shapes(folder.path(), {}), "cannot be written: No such file or directory");
}

TEST(Cifar10RecipeTest, LeavesOutALastBatchOfASingleImage) {
  const Options options{.batch_size = 32};
  for (const auto& [count, is_left_out] :
       std::map<int64_t, bool>{{33, true}, {65, true}, {32, false}, {34, false}, {31, false}}) {
    const Images images{torch::empty({count, 3, 32, 32}, torch::kUInt8), torch::zeros(count)};
    EXPECT_EQ(train_loader_options(options, images).drop_last, is_left_out) << count;
  }
}

TEST(Cifar10RecipeTest, TestsEachImageOnce) {
  EXPECT_EQ(test_loader_options({}).even_batches, false);
}

TEST(Cifar10RecipeTest, LearningRateFollowsACosineEpochByEpoch) {
  const at::Tensor weight = torch::zeros(1, torch::requires_grad());
  const auto optimizer = make_optimizer({weight}, {.lr = 0.2});
  const linkboy::RunConfig config{.num_epochs = 4, .num_updates_per_epoch = 3};
  const auto scheduler = cosine_by_epoch()(*optimizer, config);
  for (int64_t update = 0; update < 12; ++update) {
    const int64_t epoch = update / 3;
    EXPECT_NEAR(scheduler->values_at(update).front(), 0.1 * (1.0 + std::cos(M_PI * epoch / 4.0)),
                1e-12);
  }
}

TEST(Cifar10RecipeTest, DefaultsAreThoseOfTheTutorial) {
  const auto options = parse_options("program", "Does something.", {});
  ASSERT_TRUE(options.has_value());
  EXPECT_EQ(options->depth, 34);
  EXPECT_EQ(options->epochs, 200);
  EXPECT_EQ(options->batch_size, 128);
  EXPECT_EQ(options->lr, 0.1);
  const auto optimizer = make_optimizer({torch::zeros(1)}, *options);
  const auto& sgd = static_cast<const torch::optim::SGDOptions&>(optimizer->defaults());
  EXPECT_EQ(sgd.momentum(), 0.9);
  EXPECT_EQ(sgd.weight_decay(), 5e-4);
}

TEST(Cifar10RecipeTest, RefusesOptionsThatDoNotGo) {
  const auto parse = [](const char* name, const char* value) {
    parse_options("program", "Does something.", {name, value});
  };
  EXPECT_ERROR(parse("--depth", "50"), "must be 18 or 34");
  EXPECT_ERROR(parse("--batch-size", "1"), "must be 2 to");
  EXPECT_ERROR(parse("--epochs", "0"), "must be 1 to");
  EXPECT_ERROR(parse("--max-updates", "0"), "must be 1 to");
  EXPECT_ERROR(parse("--test-interval", "0"), "must be at least 1");
  EXPECT_ERROR(parse("--precision", "fp8"), "must be one of auto, no, bf16, fp16");
}

TEST(Cifar10RecipeTest, PrecisionIsReducedByItselfOnlyWhereItIsFast) {
  EXPECT_EQ((Options{.device = "cpu"}).accelerator().precision, linkboy::Precision::fp32);
  EXPECT_EQ((Options{.device = "cpu", .precision = "bf16"}).accelerator().precision,
            linkboy::Precision::bf16);
}

/// The names of torchvision's `resnet18().state_dict()` or `resnet34().state_dict()`, in order.
std::vector<std::string> torchvision_names(const std::vector<int>& layer_sizes) {
  std::vector<std::string> names;
  const auto add_pair = [&](const std::string& conv, const std::string& norm) {
    names.push_back(conv + ".weight");
    for (const char* name : {"weight", "bias", "running_mean", "running_var"}) {
      names.push_back(norm + "." + name);
    }
    names.push_back(norm + ".num_batches_tracked");
  };
  add_pair("conv1", "bn1");
  for (std::size_t layer = 0; layer < layer_sizes.size(); ++layer) {
    for (int block = 0; block < layer_sizes[layer]; ++block) {
      const std::string prefix = c10::str("layer", layer + 1, ".", block, ".");
      add_pair(prefix + "conv1", prefix + "bn1");
      add_pair(prefix + "conv2", prefix + "bn2");
      if (layer > 0 && block == 0) add_pair(prefix + "downsample.0", prefix + "downsample.1");
    }
  }
  names.insert(names.end(), {"fc.weight", "fc.bias"});
  return names;
}

struct ResNetSizes {
  int64_t depth;
  std::vector<int> layers;
  std::size_t num_parameters;
  std::size_t num_tensors;
  int64_t num_elements;  // of the parameters, with 1000 classes
};

struct Cifar10ResNetTest : ::testing::TestWithParam<ResNetSizes> {};

TEST_P(Cifar10ResNetTest, HasTorchvisionsNamesAndSizes) {
  const resnet::ResNet model(resnet::ResNetOptions{.depth = GetParam().depth});
  EXPECT_EQ(model->parameters().size(), GetParam().num_parameters);
  int64_t num_elements = 0;
  for (const auto& parameter : model->parameters()) num_elements += parameter.numel();
  EXPECT_EQ(num_elements, GetParam().num_elements);

  std::vector<std::string> names;
  for (const auto& [name, tensor] : linkboy::Model(model).named_tensors()) names.push_back(name);
  EXPECT_EQ(names.size(), GetParam().num_tensors);
  EXPECT_EQ(names, torchvision_names(GetParam().layers));
}

INSTANTIATE_TEST_SUITE_P(Depths, Cifar10ResNetTest,
                         ::testing::Values(ResNetSizes{18, {2, 2, 2, 2}, 62, 122, 11'689'512},
                                           ResNetSizes{34, {3, 4, 6, 3}, 110, 218, 21'797'672}),
                         [](const auto& info) { return c10::str("ResNet", info.param.depth); });

// The numbers come from tests/parity/torchvision_resnet_golden.py: torch 2.11.0, torchvision
// 0.26.0. Normal random numbers are drawn by vector instructions where there are some, whose
// logarithm rounds differently: without them the sums move by 1e-8 of their value. Another order of
// drawing would move them by 1e-3.
TEST(Cifar10ResNetGoldenTest, GivesTorchvisionsWeightsAndScoresForTheSameSeed) {
  const at::NoGradGuard no_grad;
  torch::manual_seed(3);
  resnet::ResNet model(resnet::ResNetOptions{.depth = 34, .num_classes = 10});
  const auto parameters = model->named_parameters();
  for (const auto& [name, sum] :
       std::map<std::string, double>{{"conv1.weight", 191.5353463634275},
                                     {"layer2.0.downsample.0.weight", 817.679667415432},
                                     {"layer4.1.conv2.weight", 39206.437526859154},
                                     {"fc.weight", 113.94636533144148}}) {
    const auto found = parameters[name].to(torch::kDouble).abs().sum().item<double>();
    EXPECT_NEAR(found, sum, 1e-7 * sum) << name;
  }

  model->eval();
  const at::Tensor scores =
      model->forward(torch::linspace(-1, 1, 3 * 32 * 32).reshape({1, 3, 32, 32}));
  const std::vector<double> expected{
      0.11391041427850723,  -0.6427422165870667, 0.702272355556488,  0.1640002280473709,
      0.1638948917388916,   -0.6120059490203857, 0.5769026875495911, 0.026336029171943665,
      -0.12177729606628418, -0.17467685043811798};
  ASSERT_EQ(scores.sizes(), (std::vector<int64_t>{1, 10}));
  for (std::size_t i = 0; i < expected.size(); ++i) {
    EXPECT_NEAR(scores[0][static_cast<int64_t>(i)].item<double>(), expected[i], 1e-4) << i;
  }
}

TEST(Cifar10ResNetErrorsTest, RefusesOtherDepthsAndNoClasses) {
  EXPECT_ERROR(resnet::ResNet(resnet::ResNetOptions{.depth = 50}), "take a depth of 18 or 34");
  EXPECT_ERROR(resnet::ResNet(resnet::ResNetOptions{.num_classes = 0}),
               "for 0 classes is asked for; there must be at least 1");
  EXPECT_ERROR(resnet::ResNet(resnet::ResNetOptions{.in_channels = 0}), "for 0 channels");
}

}  // namespace
}  // namespace cifar10::cifar10_test
