#include "checkpoint/zip_archive.hpp"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <cstdlib>

#include "checkpoint/atomic_file.hpp"
#include "checkpoint/file_bytes.hpp"
#include "linkboy/checkpoint/checkpoint.hpp"
#include "support/expect_error.hpp"
#include "support/file_contents.hpp"
#include "support/temporary_folder.hpp"

namespace linkboy::testing::zip_archive_test {
namespace {

class ZipArchiveTest : public ::testing::Test {
 protected:
  /// Writes an archive with the record "a" and the record "folder/b", which is 1000 times 'x'.
  std::string write(std::string_view a = "first") {
    AtomicFile file(path());
    ZipWriter writer(file, "archive");
    writer.add("a", a);
    writer.add("folder/b", std::string(1000, 'x'));
    writer.finish();
    file.commit();
    return read_bytes(path());
  }

  ZipReader open(bool mmap = false) const {
    return ZipReader(FileBytes::open(path(), mmap), /*verify=*/true);
  }

  std::filesystem::path path() const { return folder_ / "x.zip"; }

  TemporaryFolder folder_;
};

TEST_F(ZipArchiveTest, RecordsCanBeReadAndMapped) {
  write();
  for (bool mmap : {false, true}) {
    ZipReader reader = open(mmap);
    EXPECT_TRUE(reader.has("a"));
    EXPECT_FALSE(reader.has("b"));
    EXPECT_EQ(reader.read_text("a"), "first");
    EXPECT_EQ(reader.read_text("folder/b"), std::string(1000, 'x'));
  }
}

TEST_F(ZipArchiveTest, ALargeRecordOfAnOddLengthIsReadCompletely) {
  // Two threads read one half each.
  std::string odd((std::size_t{1} << 20) + 1, 'o');
  odd.back() = 'd';
  write(odd);
  EXPECT_TRUE(open().read_text("a") == odd);
}

TEST_F(ZipArchiveTest, DataThatLooksLikeAnEndRecordIsData) {
  const std::string end = "PK\x05\x06" + std::string(30, 'x');
  write(end);
  EXPECT_EQ(open().read_text("a"), end);
}

TEST_F(ZipArchiveTest, RecordsAreAlignedTo64BytesAndEqualContentsMakeEqualFiles) {
  const std::string bytes = write();
  EXPECT_EQ(bytes.find("first") % 64, 0U);
  EXPECT_EQ(bytes.find("xxxx") % 64, 0U);
  EXPECT_EQ(write(), bytes);
}

TEST_F(ZipArchiveTest, OtherProgramsCanReadIt) {
  write();
  const std::string command =
      "python3 -c \"import sys, zipfile; z = zipfile.ZipFile(sys.argv[1]); "
      "assert z.testzip() is None; assert z.read('archive/a') == b'first'\" '" +
      path().string() + "'";
  EXPECT_EQ(std::system(command.c_str()), 0);
}

TEST_F(ZipArchiveTest, ManyRecordsNeedTheZip64Directory) {
  AtomicFile file(path());
  ZipWriter writer(file, "archive");
  for (int i = 0; i < 70000; ++i) writer.add(std::to_string(i), std::to_string(i));
  writer.finish();
  file.commit();
  EXPECT_EQ(open().read_text("69999"), "69999");
}

TEST_F(ZipArchiveTest, AViewOfAMappedFileOutlivesTheReaderAndNeverChangesTheFile) {
  const std::string bytes = write();
  at::DataPtr data = open(/*mmap=*/true).read("a").first;
  static_cast<char*>(data.mutable_get())[0] = 'F';
  EXPECT_EQ(read_bytes(path()), bytes);
}

TEST_F(ZipArchiveTest, ErrorsNameTheDamage) {
  const std::string good = write();
  const auto check = [&](const std::string& bytes, const std::string& message) {
    write_bytes(path(), bytes);
    const auto read = [&](bool mmap) {
      ZipReader reader = open(mmap);
      reader.read_text("folder/b");
      reader.read_text("a");
    };
    EXPECT_ERROR(read(/*mmap=*/false), message);
    EXPECT_ERROR(read(/*mmap=*/true), message);
  };
  const auto with = [&](std::size_t place, const std::string& damage) {
    return std::string(good).replace(place, damage.size(), damage);
  };
  check(with(good.find("first"), "firsT"), "the record \"a\" at offset 64 has the checksum");
  check(with(good.find("PK\x05\x06"), "PKxx"), "it has no end record");
  check(with(good.find("PK\x01\x02"), "PKxx"), "its directory of records is damaged");
  check(with(good.rfind("PK\x03\x04"), "PKxx"), "\"folder/b\" is not where the directory says");
  check(with(good.rfind("archive/a"), "archive/c"), "the record \"a\" is missing");
  check(good.substr(0, good.size() - 30), "it is damaged or cut short");
  // In the directory's entry of "folder/b", the method is at byte 10. The packed and the unpacked
  // size are at bytes 20 and 24.
  const std::size_t entry = good.rfind("PK\x01\x02");
  check(with(entry + 10, "\x08"), "is compressed");
  check(with(entry + 20, "\xff\xff\xff\x0f\xff\xff\xff\x0f"),
        "claims 268435455 bytes, more than the file has");
}

TEST_F(ZipArchiveTest, EveryTruncationIsAnErrorAndNeverACrash) {
  const std::string bytes = write();
  for (std::size_t size = 0; size < bytes.size(); ++size) {
    write_bytes(path(), bytes.substr(0, size));
    EXPECT_THROW(open(/*mmap=*/size % 2 == 0), Error) << size;
  }
}

TEST(MappedCheckpointTest, TensorsAreViewsOfTheFile) {
  const TemporaryFolder folder;
  const auto values = torch::arange(1000, torch::kFloat);
  write_checkpoint(folder / "x.pt", {{"values", values}});
  const StateDict state = read_checkpoint(folder / "x.pt", {.mmap = true});
  std::filesystem::remove(folder / "x.pt");
  EXPECT_TRUE(torch::equal(state.get_tensor("values"), values));
  state.get_tensor("values").fill_(1);
}

}  // namespace
}  // namespace linkboy::testing::zip_archive_test
