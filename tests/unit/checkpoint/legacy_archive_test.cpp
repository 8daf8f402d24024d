// Files of torch.save before PyTorch 1.6. checkpoint_python_test.cpp reads files that Python wrote.

#include "checkpoint/legacy_archive.hpp"

#include <gtest/gtest.h>
#include <torch/types.h>

#include <string>
#include <vector>

#include "checkpoint/file_bytes.hpp"
#include "linkboy/checkpoint/checkpoint.hpp"
#include "support/expect_error.hpp"
#include "support/file_contents.hpp"
#include "support/temporary_folder.hpp"

namespace linkboy::testing::legacy_archive_test {
namespace {

using namespace std::string_literals;

std::string text(const std::string& value) {
  return "X" + little_endian(static_cast<uint32_t>(value.size())) + value;
}

/// A pickle of a tensor with `size` floats, in the storage `key` of `claimed` floats.
std::string tensor(const std::string& key, char size, char claimed, const std::string& view = "N") {
  return "ctorch._utils\n_rebuild_tensor\n((" + text("storage") + "ctorch\nFloatStorage\n" +
         text(key) + text("cpu") + "K" + claimed + view + "tQK\0K"s + size + "\x85K\x01\x85tR";
}

std::string view(const std::string& key, char offset, char size) {
  return "(" + text(key) + "K" + offset + "K" + size + "t";
}

/// The number of elements and the bytes of a storage.
std::string data(const std::vector<float>& values) {
  std::string bytes = little_endian(static_cast<int64_t>(values.size()));
  for (const float value : values) bytes += little_endian(value);
  return bytes;
}

const std::string kStart = "\x80\x02\x8a\x0a\x6c\xfc\x9c\x46\xf9\x20\x6a\xa8\x50\x19."s;
const std::string kVersion = "\x80\x02M\xe9\x03."s;
const std::string kTypes = "\x80\x02}."s;

class LegacyArchiveTest : public ::testing::Test {
 protected:
  /// Reads a file with these pickles of entries, keys and storages.
  StateDict read(const std::string& entries, const std::string& keys, const std::string& storages,
                 const ReadOptions& options = {}) const {
    return read_bytes(kStart + kVersion + kTypes + "\x80\x02}(" + entries + "u.\x80\x02](" + keys +
                          "e." + storages,
                      options);
  }
  StateDict read_bytes(const std::string& bytes, const ReadOptions& options = {}) const {
    write_bytes(folder_ / "x.pt", bytes);
    return read_checkpoint(folder_ / "x.pt", options);
  }

  TemporaryFolder folder_;
};

TEST_F(LegacyArchiveTest, TensorsShareTheirStorage) {
  const StateDict state =
      read(text("a") + tensor("1", 3, 3) + text("b") + tensor("1", 2, 3) + text("c") +
               tensor("2", 1, 1) + text("d") + tensor("1", 2, 3, view("part", 1, 2)),
           text("2") + text("1"), data({9}) + data({1, 2, 3}));
  EXPECT_TRUE(torch::equal(state.get_tensor("a"), torch::tensor({1.0F, 2.0F, 3.0F})));
  EXPECT_TRUE(state.get_tensor("a").is_alias_of(state.get_tensor("b")));
  EXPECT_EQ(state.get_tensor("c").item<float>(), 9);
  EXPECT_TRUE(torch::equal(state.get_tensor("d"), torch::tensor({2.0F, 3.0F})));
  state.get_tensor("a")[2].fill_(7);
  EXPECT_EQ(state.get_tensor("d")[1].item<float>(), 7);
}

TEST_F(LegacyArchiveTest, WithoutDataTensorsHaveShapesOnly) {
  const auto sizes_of = [&](const std::string& storages) {
    return read(text("a") + tensor("1", 3, 3), text("1"), storages, {.with_data = false})
        .get_tensor("a")
        .sizes()
        .vec();
  };
  EXPECT_EQ(sizes_of(data({1, 2, 3})), std::vector<int64_t>{3});
  const std::string whole = data({1, 2, 3});
  EXPECT_ERROR(sizes_of(whole.substr(0, whole.size() - 1)), "it is cut short");
}

TEST_F(LegacyArchiveTest, APickleCanBeLargerThanAPiece) {
  const std::string name(100'000, 'n');
  std::string entries;
  for (int i = 0; i < 3; ++i) entries += text(std::to_string(i) + name) + tensor("1", 1, 1);
  const StateDict state = read(entries, text("1"), data({5}));
  EXPECT_EQ(state.size(), 3U);
  EXPECT_EQ(state.get_tensor("2" + name).item<float>(), 5);
  EXPECT_ERROR(read(text("a") + "c" + name + "\n" + name + "\n", "", ""), "the Python object");
  EXPECT_ERROR(read_bytes(kStart + kVersion + kTypes + "\x80\x02" + "c" + name),
               "ends within a name");
}

TEST_F(LegacyArchiveTest, RefusesStoragesThatDoNotMatch) {
  const std::string entry = text("a") + tensor("1", 3, 3);
  const std::string values = data({1, 2, 3});
  EXPECT_ERROR(read(entry, "", ""), "it lacks 1 storages");
  EXPECT_ERROR(read(entry, text("2"), values), "does not match its tensors");
  EXPECT_ERROR(read(entry, "K\x01", values), "does not match its tensors");
  EXPECT_ERROR(read(entry, text("1") + text("1"), values + values), "does not match its tensors");
  EXPECT_ERROR(read(entry, text("1"), data({1, 2})), "has 2 elements, but its tensors need 3");
  EXPECT_ERROR(read(entry, text("1"), ""), "ends too early");
  EXPECT_ERROR(read(entry, text("1"), values.substr(0, 19)), "it is cut short");
  EXPECT_ERROR(read(text("a") + tensor("1", 4, 3), text("1"), values), "does not lie within");
  EXPECT_ERROR(read(text("a") + tensor("1", 1, '\x7f'), text("1"), values), "claims 127 elements");
  for (const auto& part : {view("p", 2, 2), view("p", 4, 0), view("p", 0, 4)}) {
    EXPECT_ERROR(read(text("a") + tensor("1", 0, 3, part), text("1"), values), "a storage claims");
  }
  EXPECT_ERROR(read(text("a") + tensor("1", 0, 3, "K\x01\x85"), text("1"), values),
               "description of a storage is damaged");
}

TEST_F(LegacyArchiveTest, RefusesOtherVersionsAndDamage) {
  EXPECT_ERROR(read_bytes(kStart + "\x80\x02K\x07."), "its version of the format is 7");
  EXPECT_ERROR(read_bytes(kStart), "ends too early");
  EXPECT_ERROR(read_bytes(kStart + kVersion + "\x80\x02" + tensor("1", 1, 1) + "."),
               "there is a tensor before its value");
  EXPECT_ERROR(read_bytes(kStart + kVersion + kTypes + "\x80\x02}.\x80\x02N."),
               "its list of storages is missing");
  EXPECT_ERROR(read_bytes(kStart.substr(0, 9)), "it is not a checkpoint");
}

}  // namespace
}  // namespace linkboy::testing::legacy_archive_test
