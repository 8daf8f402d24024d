#include "linkboy/vision/cifar.hpp"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <string>

#include "support/drop_root.hpp"
#include "support/expect_error.hpp"
#include "support/file_contents.hpp"
#include "support/temporary_folder.hpp"

namespace linkboy::vision::cifar_test {
namespace {

/// Returns a record. Each of its colour planes has a single value.
std::string record(char label, char red, char green, char blue) {
  return label + std::string(1024, red) + std::string(1024, green) + std::string(1024, blue);
}

/// Writes a CIFAR-10 folder with two images in each file, which the tests can damage.
struct CifarTest : ::testing::Test {
  CifarTest() {
    for (char number = 1; number <= 5; ++number) {
      write_bytes(train_file(number), record(number, number, 0, 0) + record(9, 0, number, '\xff'));
    }
    write_bytes(test_file(), record(0, 1, 2, 3) + record(7, 4, 5, 6));
  }

  std::filesystem::path train_file(int number) const {
    return folder / c10::str("data_batch_", number, ".bin");
  }
  std::filesystem::path test_file() const { return folder / "test_batch.bin"; }

  TemporaryFolder folder;
};

TEST_F(CifarTest, ReadsTheFiveTrainingFilesInOrder) {
  const LabelledImages images = read_cifar10(folder.path(), Split::train);
  EXPECT_EQ(images.images.sizes(), (std::vector<int64_t>{10, 3, 32, 32}));
  EXPECT_EQ(images.images.scalar_type(), torch::kUInt8);
  EXPECT_TRUE(
      torch::equal(images.labels, torch::tensor({1, 9, 2, 9, 3, 9, 4, 9, 5, 9}, torch::kLong)));
  EXPECT_TRUE(torch::equal(images.images.select(2, 31).select(2, 0)[5],
                           torch::tensor({0, 3, 255}, torch::kUInt8)));
}

TEST_F(CifarTest, ReadsPixelsAsPlanesRowByRow) {
  std::string image = record(3, 0, 0, 0);
  image[1 + 1024 + 32 * 5 + 6] = '\xc8';
  write_bytes(test_file(), image);
  const LabelledImages images = read_cifar10(folder.path(), Split::test);
  EXPECT_EQ(images.images[0][1][5][6].item<int64_t>(), 200);
  EXPECT_EQ(images.images.sum().item<int64_t>(), 200);
}

TEST_F(CifarTest, RefusesAMissingFileAndAFolder) {
  const auto read_train = [&] { (void)read_cifar10(folder.path(), Split::train); };
  std::filesystem::remove(train_file(4));
  EXPECT_ERROR(read_train(), "data_batch_4.bin\" is missing. Unpack https:");
  std::filesystem::create_directory(train_file(4));
  EXPECT_ERROR(read_train(), "data_batch_4.bin\" is not a file. Remove it");
}

TEST_F(CifarTest, RefusesAnUnreadableFile) {
  std::filesystem::permissions(test_file(), std::filesystem::perms::none);
  const WithoutRootsRights scope(folder.path());
  EXPECT_ERROR(read_cifar10(".", Split::test), "cannot be read: Permission denied. Make it");
}

TEST_F(CifarTest, RefusesDamagedFiles) {
  const std::string good = record(1, 2, 3, 4);
  const auto check = [&](const std::string& bytes, const std::string& message) {
    write_bytes(test_file(), bytes);
    EXPECT_ERROR_AS(CorruptFileError, read_cifar10(folder.path(), Split::test), message);
  };
  check("", "test_batch.bin\" is empty. Restore the file");
  check(good + "x",
        "has 3074 bytes; it must consist of complete records of 3073 bytes, 1 for labels and 3072");
  check(good + record(10, 2, 3, 4), "has the label 10 for image 1; labels must be 0 to 9. Restore");
}

TEST_F(CifarTest, AMissingFolderIsAnErrorThatSaysWhereToGetTheData) {
  EXPECT_ERROR(read_cifar10(folder / "none", Split::train),
               "none\" of CIFAR-10 does not exist. Unp");
  EXPECT_ERROR(read_cifar10(folder / "none", Split::test),
               "cifar-10-binary.tar.gz and pass its folder, cifar-10-batches-bin.");
  EXPECT_ERROR(read_cifar100(folder / "none", Split::test),
               "cifar-100-binary.tar.gz and pass its folder, cifar-100-binary.");
}

TEST_F(CifarTest, DetectsTheParentFolderAndThePythonVersion) {
  const TemporaryFolder other;
  std::filesystem::create_directory(other / "cifar-10-batches-bin");
  EXPECT_ERROR(read_cifar10(other.path(), Split::train),
               "does not contain test_batch.bin itself. Use the folder");
  for (const char* name : {"batches.meta", "meta"}) write_bytes(folder / name, "");
  EXPECT_ERROR(read_cifar10(folder.path(), Split::train),
               "Python version of CIFAR-10; the binary version is required. Unpack https:");
  EXPECT_ERROR(read_cifar100(folder.path(), Split::train), "Python version of CIFAR-100");
}

TEST_F(CifarTest, DistinguishesMissingAndDamagedFiles) {
  std::filesystem::remove(test_file());
  try {
    (void)read_cifar10(folder.path(), Split::test);
    ADD_FAILURE() << "nothing was thrown";
  } catch (const FileError& error) {
    EXPECT_EQ(dynamic_cast<const CorruptFileError*>(&error), nullptr);
  }
}

TEST_F(CifarTest, ReadsEitherLabelOfCifar100) {
  write_bytes(folder / "train.bin", "\x13" + record(99, 1, 2, 3) + '\0' + record(7, 4, 5, 6));
  write_bytes(folder / "test.bin", "\x05" + record(42, 7, 8, 9));
  const LabelledImages fine = read_cifar100(folder.path(), Split::train);
  EXPECT_TRUE(torch::equal(fine.labels, torch::tensor({99, 7}, torch::kLong)));
  EXPECT_TRUE(torch::equal(fine.images.select(2, 31).select(2, 31),
                           torch::tensor({{1, 2, 3}, {4, 5, 6}}, torch::kUInt8)));
  const LabelledImages coarse = read_cifar100(folder.path(), Split::train, Cifar100Labels::coarse);
  EXPECT_TRUE(torch::equal(coarse.labels, torch::tensor({19, 0}, torch::kLong)));
  EXPECT_TRUE(torch::equal(coarse.images, fine.images));
  EXPECT_EQ(read_cifar100(folder.path(), Split::test).labels.item<int64_t>(), 42);
}

TEST_F(CifarTest, RefusesLabelsOfCifar100OutOfRange) {
  write_bytes(folder / "test.bin", "\x14" + record(100, 7, 8, 9));
  EXPECT_ERROR(read_cifar100(folder.path(), Split::test),
               "has the label 100 for image 0; labels must be 0 to 99.");
  EXPECT_ERROR(read_cifar100(folder.path(), Split::test, Cifar100Labels::coarse),
               "has the label 20 for image 0; labels must be 0 to 19.");
  write_bytes(folder / "test.bin", record(1, 7, 8, 9));
  EXPECT_ERROR(read_cifar100(folder.path(), Split::test),
               "has 3073 bytes; it must consist of complete records of 3074 bytes, 2 for labels");
}

}  // namespace
}  // namespace linkboy::vision::cifar_test
