#include <gtest/gtest.h>
#include <sys/stat.h>
#include <torch/types.h>

#include <cstring>
#include <fstream>
#include <random>
#include <string>
#include <vector>

#include "linkboy/checkpoint/checkpoint.hpp"
#include "linkboy/checkpoint/safetensors.hpp"
#include "support/expect_error.hpp"
#include "support/file_contents.hpp"
#include "unit/checkpoint/safetensors_file.hpp"

namespace linkboy::testing::safetensors_errors_test {
namespace {

using Names = std::vector<std::string>;

TEST_F(SafeTensorsTest, RefusesToWriteUnsupportedValues) {
  write_safetensors(path_, {{"old", torch::ones({1})}});
  const auto write = [this](const at::Tensor& tensor) {
    write_safetensors(path_, {{"w", tensor}});
  };
  EXPECT_ERROR(
      write(torch::ones({1}, at::kComplexDouble)),
      "x.safetensors\": tensor \"w\": its dtype is ComplexDouble; the format supports U64");
  EXPECT_ERROR(write(at::quantize_per_tensor(torch::ones({1}), 1.0, 0, at::kQInt8)),
               "its dtype is QInt8");
  EXPECT_ERROR(write(torch::ones({2}).to_sparse()),
               "its layout is Sparse; the format supports dense");
  EXPECT_ERROR(write(torch::ones({2}, at::kMeta)), "it is on the meta device");
  EXPECT_ERROR(write(at::Tensor()), "tensor \"w\": it is undefined");
  EXPECT_EQ(names_of(read_safetensors(path_)), Names{"old"});
  EXPECT_EQ(folder_.names(), Names{"x.safetensors"});
}

TEST_F(SafeTensorsTest, RefusesToWriteUnsupportedNames) {
  const at::Tensor one = torch::ones({1});
  EXPECT_ERROR(
      write_safetensors(path_, {{"w", one}, {"v", one}, {"w", torch::ones({1}, at::kInt)}}),
      "two tensors are named \"w\"");
  EXPECT_ERROR(write_safetensors(path_, {{"__metadata__", one}}), "a tensor is named \"__metadata");
  EXPECT_ERROR(write_safetensors(path_, {{"a\xff", one}}), "is not UTF-8");
  EXPECT_ERROR(write_safetensors(path_, {}, {{"k", "\xc3"}}), "is not UTF-8");
  EXPECT_ERROR(write_safetensors(path_, {}, {{"k", std::string(100'000'000, 'x')}}),
               "the header has 100000032 bytes; the format allows 100000000");
  EXPECT_TRUE(folder_.names().empty());
}

TEST_F(SafeTensorsTest, AnUnwritableFileIsAnErrorWithThePath) {
  EXPECT_ERROR(write_safetensors(folder_.path(), {}), "is the path of a folder; a file is needed");
  EXPECT_ERROR(write_safetensors("/proc/x.safetensors", {}), "cannot create \"/proc/x.safetensors");
}

TEST_F(SafeTensorsTest, ErrorsSayWhatKindOfFileItIs) {
  EXPECT_ERROR(read_safetensors(folder_ / "none"), "none\": No such file or directory");
  EXPECT_ERROR(read_safetensors(folder_.path()), "it is a folder; a file is needed");
  ASSERT_EQ(::mkfifo((folder_ / "pipe").c_str(), 0600), 0);
  EXPECT_ERROR(read_safetensors(folder_ / "pipe"), "it is not a regular file");
  EXPECT_ERROR(read(""), "x.safetensors\": it is empty");
  EXPECT_ERROR(read("123456789"), "it has 9 bytes; a safetensors file has at least 10");
  EXPECT_ERROR(read("hello, world"), "It is damaged, cut short or not a safetensors file");
  write_checkpoint(path_, {{"v", 1}});
  EXPECT_ERROR(read_safetensors(path_), "It is damaged, cut short or not a safetensors file");
}

TEST_F(SafeTensorsTest, RefusesHeadersOfAWrongLength) {
  const std::string good = file_of("{}      ");
  for (const uint64_t length : {uint64_t{0}, uint64_t{1}, uint64_t{9}, uint64_t{100'000'001},
                                uint64_t{1} << 63, ~uint64_t{0}}) {
    std::string bad = good;
    std::memcpy(bad.data(), &length, sizeof(length));
    EXPECT_ERROR(read(bad), "its header claims " + std::to_string(length) +
                                " bytes; in a file of this size it can have 2 to 8");
  }
  // The file is sparse, so it needs no space on the disk.
  write_bytes(path_, good);
  std::filesystem::resize_file(path_, 200'000'000);
  std::fstream file(path_, std::ios::binary | std::ios::in | std::ios::out);
  const uint64_t length = 100'000'001;
  file.write(reinterpret_cast<const char*>(&length), sizeof(length));
  file.close();
  EXPECT_ERROR(read_safetensors(path_),
               "claims 100000001 bytes; in a file of this size it can "
               "have 2 to 100000000");
}

TEST_F(SafeTensorsTest, RefusesHeadersThatAreNotJson) {
  EXPECT_ERROR(read(file_of(" {}")), "its header does not begin with \"{\"");
  EXPECT_ERROR(read(file_of("[]")), "its header does not begin with \"{\"");
  EXPECT_ERROR(read(file_of("{x}")), "its header is not JSON at byte 2");
  EXPECT_ERROR(read(file_of("{}x")), "its header is not JSON at byte 3");
  EXPECT_ERROR(read(file_of("{}{}")), "its header is not JSON at byte 3");
  EXPECT_ERROR(read(file_of("{\"a\xff\":1}")), "its header is not JSON at byte 4");
  EXPECT_ERROR(read(file_of(R"({"a\ud800":1})")), "its header is not JSON");
  EXPECT_ERROR(read(file_of(R"({"a":1e999})")), "its header is not JSON");
  EXPECT_ERROR(read(file_of(std::string("{}\0x", 4))), "its header has a zero byte at byte 3");
  EXPECT_ERROR(read(file_of(R"({"a":)" + std::string(1'000'000, '['))), "\"a\" is an array");
  EXPECT_ERROR(read(file_of(R"({"a":{"b":)" + std::string(1'000'000, '{'))), "the field \"b\"");
}

TEST_F(SafeTensorsTest, RefusesDuplicateKeys) {
  const std::string a = R"("a":{"dtype":"U8","shape":[0],"data_offsets":[0,0]})";
  EXPECT_ERROR(read(file_of("{" + a + "," + a + "}")), "its header has \"a\" twice");
  EXPECT_ERROR(read(file_of(R"({"__metadata__":{},"__metadata__":{}})")), "\"__metadata__\" twice");
  EXPECT_ERROR(read(file_of(R"({"__metadata__":{"k":"v","k":"v"}})")),
               "\"k\" twice in \"__metadata__\"");
  EXPECT_ERROR(read(file_of(R"({"a":{"shape":[0],"shape":[0]}})")),
               "tensor \"a\" has its shape twice");
}

TEST_F(SafeTensorsTest, RefusesMetadataThatIsNotText) {
  const auto read_metadata = [this](const std::string& json) {
    read(file_of(R"({"__metadata__":)" + json + "}"));
  };
  EXPECT_ERROR(read_metadata("null"), "\"__metadata__\" is null; it must be an object");
  EXPECT_ERROR(read_metadata("[]"), "\"__metadata__\" is an array; it must be an object");
  EXPECT_ERROR(read_metadata(R"({"k":1})"), "the metadata \"k\" is 1; it must be a string");
  EXPECT_ERROR(read_metadata(R"({"k":-1})"), "the metadata \"k\" is -1; it must be a string");
  EXPECT_ERROR(read_metadata(R"({"k":0.5})"), "the metadata \"k\" is \"0.5\"; it must be a string");
  EXPECT_ERROR(read_metadata(R"({"k":true})"), "the metadata \"k\" is true; it must be a string");
  EXPECT_ERROR(read_metadata(R"({"k":{}})"), "the metadata \"k\" is an object; it must be a str");
  EXPECT_ERROR(read_metadata(R"({"k":[]})"), "the metadata \"k\" is an array; it must be a string");
}

TEST_F(SafeTensorsTest, RefusesEntriesOfAWrongType) {
  EXPECT_ERROR(read(file_of(R"({"a":1})")), "tensor \"a\" is 1; it must be an object");
  EXPECT_ERROR(read(file_of(R"({"a":"b"})")), "tensor \"a\" is \"b\"; it must be an object");
  const auto read_tensor = [this](const std::string& fields) {
    read(file_of(R"({"a":{)" + fields + "}}"));
  };
  EXPECT_ERROR(read_tensor(""), "tensor \"a\" lacks one of dtype, shape and data_offsets");
  EXPECT_ERROR(read_tensor(R"("dtype":"U8","shape":[0])"), "tensor \"a\" lacks one of");
  EXPECT_ERROR(read_tensor(R"("strides":[1])"), "tensor \"a\" has the field \"strides\"");
  EXPECT_ERROR(read_tensor(R"("dtype":3)"), "the dtype of tensor \"a\" is 3; it must be a string");
  EXPECT_ERROR(read_tensor(R"("dtype":["F32"])"), "the dtype of tensor \"a\" is an array");
  EXPECT_ERROR(read_tensor(R"("dtype":"F4")"),
               "the dtype of tensor \"a\" is \"F4\"; it must be one of U64, I64, F64");
  EXPECT_ERROR(read_tensor(R"("shape":"x")"),
               "the shape of tensor \"a\" is \"x\"; it must be an a");
  EXPECT_ERROR(read_tensor(R"("shape":null)"), "the shape of tensor \"a\" is null; it must be an");
  EXPECT_ERROR(read_tensor(R"("shape":[[1]])"),
               "the shape of tensor \"a\" contains an array; only");
  EXPECT_ERROR(read_tensor(R"("shape":["1"])"),
               "the shape of tensor \"a\" contains \"1\"; only non");
  EXPECT_ERROR(read_tensor(R"("shape":[1.0])"), "the shape of tensor \"a\" contains \"1.0\"; only");
  EXPECT_ERROR(read_tensor(R"("data_offsets":[0])"), "has 1 numbers; it must be [begin, end]");
  EXPECT_ERROR(read_tensor(R"("data_offsets":[0,0,0])"), "has more than 2 numbers");
  EXPECT_ERROR(read_tensor(R"("data_offsets":{})"), "the data_offsets of tensor \"a\" is an obj");
}

// Returns a header with one F32 tensor.
std::string header_of(const std::string& shape, const std::string& offsets) {
  return R"({"a":{"dtype":"F32","shape":)" + shape + R"(,"data_offsets":)" + offsets + "}}";
}

TEST_F(SafeTensorsTest, RefusesInvalidShapes) {
  EXPECT_ERROR(read(file_of(header_of("[-1]", "[0,4]"))),
               "contains -1; only non-negative integers");
  EXPECT_ERROR(read(file_of(header_of("[9223372036854775808]", "[0,0]"))),
               "contains 9223372036854775808; sizes must fit into 63 bits");
  EXPECT_ERROR(read(file_of(header_of("[18446744073709551616]", "[0,0]"))),
               "contains \"18446744073709551616\"; only non-negative");
  // 2^64 elements, which would wrap around to 0.
  EXPECT_ERROR(read(file_of(header_of("[4294967296,4294967296]", "[0,0]"))),
               "is too large for any");
  EXPECT_ERROR(read(file_of(header_of("[0,4294967296,4294967296]", "[0,0]"))), "is too large for");
  // 2^62 elements of 4 bytes, which would also wrap around to 0.
  EXPECT_ERROR(read(file_of(header_of("[4611686018427387904]", "[0,0]"))), "is too large for any");
  std::string ones = "[1";
  for (int i = 1; i < 64; ++i) ones += ",1";
  EXPECT_EQ(read(file_of(header_of(ones + "]", "[0,4]"), "abcd")).tensors[0].second.dim(), 64);
  EXPECT_ERROR(read(file_of(header_of(ones + ",1]", "[0,4]"), "abcd")), "more than 64 dimensions");
}

TEST_F(SafeTensorsTest, RefusesSizesThatDoNotMatchTheShape) {
  EXPECT_ERROR(read(file_of(header_of("[2]", "[0,4]"), "abcd")),
               "tensor \"a\" has 4 bytes; its shape [2] of Float needs 8");
  EXPECT_ERROR(read(file_of(header_of("[]", "[0,0]"))), "has 0 bytes; its shape [] of Float needs");
  EXPECT_ERROR(read(file_of(header_of("[0]", "[0,4]"), "abcd")), "has 4 bytes; its shape [0]");
  EXPECT_ERROR(read(file_of(header_of("[1]", "[4,0]"), "abcd")),
               "begins at byte 4 and ends before it, at byte 0");
}

TEST_F(SafeTensorsTest, RefusesOffsetsBeyondTheFile) {
  EXPECT_ERROR(read(file_of(header_of("[1]", "[0,4]"), "abc")),
               "tensor \"a\" ends at byte 4 of the data, but there are only 3");
  EXPECT_ERROR(read(file_of(header_of("[1]", "[18446744073709551611,18446744073709551615]"))),
               "ends at byte 18446744073709551615 of the data, but there are only 0");
  EXPECT_ERROR(read(file_of(header_of("[1]", "[-4,0]"))),
               "contains -4; only non-negative integers");
}

TEST_F(SafeTensorsTest, RefusesGapsAndOverlaps) {
  const auto two = [](const std::string& first, const std::string& second) {
    return R"({"a":{"dtype":"U8","shape":[2],"data_offsets":)" + first +
           R"(},"b":{"dtype":"U8","shape":[2],"data_offsets":)" + second + "}}";
  };
  EXPECT_EQ(read(file_of(two("[2,4]", "[0,2]"), "abcd")).tensors.size(), 2U);
  EXPECT_ERROR(read(file_of(two("[0,2]", "[1,3]"), "abc")),
               "tensor \"b\" begins at byte 1 of the data, within the tensor before it");
  EXPECT_ERROR(read(file_of(two("[0,2]", "[0,2]"), "ab")), "tensors must not overlap");
  EXPECT_ERROR(read(file_of(two("[0,2]", "[3,5]"), "abcde")),
               "bytes 2 to 3 of the data, before tensor \"b\", belong to no tensor");
  EXPECT_ERROR(read(file_of(two("[1,3]", "[3,5]"), "abcde")), "bytes 0 to 1 of the data");
  EXPECT_ERROR(read(file_of(two("[0,2]", "[2,4]"), "abcde")), "the last 1 bytes belong to no");
  EXPECT_ERROR(read(file_of("{}", "x")), "the last 1 bytes belong to no tensor");
}

TEST_P(SafeTensorsModesTest, RefusesInvalidBools) {
  const std::string json = R"({"m":{"dtype":"BOOL","shape":[3],"data_offsets":[0,3]}})";
  EXPECT_EQ(read(file_of(json, std::string("\1\0\1", 3))).tensors[0].second.sum().item<int>(), 2);
  EXPECT_ERROR(read(file_of(json, std::string("\1\0\2", 3))),
               "tensor \"m\" of dtype BOOL contains the byte 2; only 0 and 1 are allowed");
}

TEST_F(SafeTensorsTest, ErrorsShowNamesTruncatedAndEscaped) {
  const std::string name(100'000, 'n');
  try {
    read(file_of("{\"\\u001b" + name + "\":1}"));
    FAIL();
  } catch (const Error& error) {
    EXPECT_LT(std::string(error.what()).size(), 600U);
    EXPECT_NE(std::string(error.what()).find("tensor \"\\x1bnnn"), std::string::npos)
        << error.what();
  }
}

// Reads the file and uses every byte. Returns whether no error was found.
bool try_to_read(const std::filesystem::path& path, bool mmap) {
  try {
    for (const auto& named : read_safetensors(path, mmap).tensors) {
      bytes_of(named.second).sum();
    }
  } catch (const Error&) {
    return false;
  }
  return true;
}

TEST_P(SafeTensorsModesTest, RefusesAFileTruncatedAnywhere) {
  write_safetensors(path_, {{"a", torch::rand({3})}, {"m", torch::tensor({true})}}, {{"k", "v"}});
  const std::string good = read_bytes(path_);
  ASSERT_TRUE(try_to_read(path_, GetParam()));
  for (std::size_t size = 0; size < good.size(); ++size) {
    write_bytes(path_, good.substr(0, size));
    EXPECT_FALSE(try_to_read(path_, GetParam())) << "truncated to " << size << " bytes";
  }
}

TEST_P(SafeTensorsModesTest, DamageAnywhereNeverCrashes) {
  write_safetensors(path_,
                    {{"a", torch::rand({3, 2})},
                     {"m", torch::tensor({true})},
                     {"e", torch::empty({0, 2})},
                     {"l", torch::arange(2)}},
                    {{"k", "v"}});
  const std::string good = read_bytes(path_);
  std::fstream file(path_, std::ios::binary | std::ios::in | std::ios::out);
  const auto set_byte = [&file](std::size_t place, char byte) {
    file.seekp(static_cast<std::streamoff>(place)).put(byte).flush();
  };
  std::mt19937 random(1);
  int num_refused = 0;
  for (int i = 0; i < 2000; ++i) {
    const std::size_t place = random() % good.size();
    set_byte(place, static_cast<char>(random()));
    num_refused += try_to_read(path_, GetParam()) ? 0 : 1;
    set_byte(place, good[place]);
  }
  ASSERT_EQ(read_bytes(path_), good);
  EXPECT_GT(num_refused, 1000);
  EXPECT_LT(num_refused, 2000);
}

}  // namespace
}  // namespace linkboy::testing::safetensors_errors_test
