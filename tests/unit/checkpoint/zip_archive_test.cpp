#include "checkpoint/zip_archive.hpp"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <cstdlib>
#include <fstream>
#include <sstream>

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

  void replace(std::string bytes, const std::string& old, const std::string& with,
               bool last = false) {
    const auto found = last ? bytes.rfind(old) : bytes.find(old);
    ASSERT_NE(found, std::string::npos);
    std::ofstream(path(), std::ios::binary) << bytes.replace(found, with.size(), with);
  }

  std::filesystem::path path() const { return folder_ / "x.zip"; }

  TemporaryFolder folder_;
};

TEST_F(ZipArchiveTest, RecordsCanBeReadAndMapped) {
  write();
  for (bool mmap : {false, true}) {
    ZipReader reader(FileBytes::open(path(), mmap), /*verify=*/true);
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
  ZipReader reader(FileBytes::open(path(), /*mmap=*/false), /*verify=*/true);
  EXPECT_TRUE(reader.read_text("a") == odd);
}

TEST_F(ZipArchiveTest, DataThatLooksLikeAnEndRecordIsData) {
  const std::string end = "PK\x05\x06" + std::string(30, 'x');
  write(end);
  ZipReader reader(FileBytes::open(path(), /*mmap=*/false), /*verify=*/true);
  EXPECT_EQ(reader.read_text("a"), end);
}

TEST_F(ZipArchiveTest, RecordsAreAlignedTo64Bytes) {
  const std::string bytes = write();
  EXPECT_EQ(bytes.find("first") % 64, 0U);
  EXPECT_EQ(bytes.find("xxxx") % 64, 0U);
}

TEST_F(ZipArchiveTest, EqualContentsMakeEqualFiles) { EXPECT_EQ(write(), write()); }

TEST_F(ZipArchiveTest, OtherProgramsCanReadIt) {
  write();
  const std::string command =
      "python3 -c \"import sys, zipfile; z = zipfile.ZipFile(sys.argv[1]); "
      "assert z.testzip() is None; assert z.read('archive/a') == b'first'\" '" +
      path().string() + "'";
  EXPECT_EQ(std::system(command.c_str()), 0);
}

TEST_F(ZipArchiveTest, ManyRecordsNeedTheZip64Directory) {
  constexpr int kRecords = 70000;
  {
    AtomicFile file(path());
    ZipWriter writer(file, "archive");
    for (int i = 0; i < kRecords; ++i) writer.add(std::to_string(i), std::to_string(i));
    writer.finish();
    file.commit();
  }
  ZipReader reader(FileBytes::open(path(), /*mmap=*/false), /*verify=*/true);
  EXPECT_EQ(reader.read_text("69999"), "69999");
}

TEST_F(ZipArchiveTest, AViewOfAMappedFileOutlivesTheReaderAndNeverChangesTheFile) {
  const std::string bytes = write();
  at::DataPtr data;
  {
    ZipReader reader(FileBytes::open(path(), /*mmap=*/true), /*verify=*/true);
    data = reader.read("a").first;
  }
  static_cast<char*>(data.mutable_get())[0] = 'F';
  EXPECT_EQ(read_bytes(path()), bytes);
}

TEST_F(ZipArchiveTest, ErrorsNameTheDamage) {
  const std::string bytes = write();
  auto read = [&] {
    ZipReader reader(FileBytes::open(path(), /*mmap=*/false), /*verify=*/true);
    reader.read_text("folder/b");
    reader.read_text("a");
  };
  replace(bytes, "first", "firsT");
  EXPECT_ERROR(read(), "the record \"a\" at offset 64 has the checksum");
  replace(bytes, "PK\x05\x06", "PKxx");
  EXPECT_ERROR(read(), "it has no end record");
  replace(bytes, "PK\x01\x02", "PKxx");
  EXPECT_ERROR(read(), "its directory of records is damaged");
  replace(bytes, "PK\x03\x04", "PKxx", /*last=*/true);
  EXPECT_ERROR(read(), "\"folder/b\" is not where the directory says");
  replace(bytes, "archive/a", "archive/c", /*last=*/true);
  EXPECT_ERROR(read(), "the record \"a\" is missing");
  std::ofstream(path(), std::ios::binary) << bytes.substr(0, bytes.size() - 30);
  EXPECT_ERROR(read(), "it is damaged or cut short");
}

TEST_F(ZipArchiveTest, ARecordThatClaimsMoreThanTheFileIsRefused) {
  std::string bytes = write();
  // Changes both sizes, packed and unpacked, in the directory entry of "folder/b". They follow the
  // CRC.
  const auto entry = bytes.rfind("PK\x01\x02");
  for (std::size_t field : {20U, 24U}) bytes.replace(entry + field, 4, "\xff\xff\xff\x0f", 4);
  std::ofstream(path(), std::ios::binary) << bytes;
  ZipReader reader(FileBytes::open(path(), /*mmap=*/true), /*verify=*/true);
  EXPECT_ERROR(reader.read("folder/b"), "claims 268435455 bytes, more than the file has");
}

TEST_F(ZipArchiveTest, ACompressedRecordIsRefused) {
  std::string bytes = write();
  bytes[bytes.rfind("PK\x01\x02") + 10] = 8;
  std::ofstream(path(), std::ios::binary) << bytes;
  ZipReader reader(FileBytes::open(path(), /*mmap=*/false), /*verify=*/true);
  EXPECT_ERROR(reader.read("folder/b"), "is compressed");
}

TEST_F(ZipArchiveTest, EveryTruncationIsAnErrorAndNeverACrash) {
  const std::string bytes = write();
  for (std::size_t size = 0; size < bytes.size(); ++size) {
    std::ofstream(path(), std::ios::binary) << bytes.substr(0, size);
    EXPECT_THROW(ZipReader(FileBytes::open(path(), size % 2 == 0), true), Error) << size;
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
