#include <gtest/gtest.h>
#include <sys/stat.h>
#include <torch/types.h>

#include <fstream>
#include <string>
#include <vector>

#include "linkboy/checkpoint/checkpoint.hpp"
#include "unit/checkpoint/damaged_copies.hpp"
#include "unit/checkpoint/safetensors_file.hpp"

namespace linkboy::testing::safetensors_errors_test {
namespace {

using Names = std::vector<std::string>;

/// Returns a header with one F32 tensor.
std::string header_of(const std::string& shape, const std::string& offsets) {
  return R"({"a":{"dtype":"F32","shape":)" + shape + R"(,"data_offsets":)" + offsets + "}}";
}

TEST_F(SafeTensorsTest, RefusesToWriteUnsupportedValues) {
  write_safetensors(path_, {{"old", torch::ones({1})}});
  const auto refuses = [this](const at::Tensor& tensor, const std::string& message) {
    EXPECT_ERROR(write_safetensors(path_, {{"w", tensor}}), message);
  };
  refuses(torch::ones({1}, at::kComplexDouble),
          "x.safetensors\": tensor \"w\": its dtype is ComplexDouble; the format supports U64");
  refuses(at::quantize_per_tensor(torch::ones({1}), 1.0, 0, at::kQInt8), "its dtype is QInt8");
  refuses(torch::ones({2}).to_sparse(), "its layout is Sparse; the format supports dense");
  refuses(torch::ones({2}, at::kMeta), "it is on the meta device");
  refuses({}, "tensor \"w\": it is undefined");
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
  const auto check = [this](uint64_t length, const std::string& most) {
    std::fstream file(path_, std::ios::binary | std::ios::in | std::ios::out);
    file.write(reinterpret_cast<const char*>(&length), sizeof(length)).flush();
    EXPECT_ERROR(read_safetensors(path_),
                 c10::str("its header claims ", length,
                          " bytes; in a file of this size it can have 2 to ", most));
  };
  write_bytes(path_, file_of("{}      "));
  for (const uint64_t length : {uint64_t{0}, uint64_t{1}, uint64_t{9}, uint64_t{100'000'001},
                                uint64_t{1} << 63, ~uint64_t{0}}) {
    check(length, "8");
  }
  std::filesystem::resize_file(path_, 200'000'000);  // sparse, so it needs no space on the disk
  check(100'000'001, "100000000");
}

TEST_F(SafeTensorsTest, RefusesHeadersThatAreNotJson) {
  expect_refused(" {}", "its header does not begin with \"{\"");
  expect_refused("[]", "its header does not begin with \"{\"");
  expect_refused("{x}", "its header is not JSON at byte 2");
  expect_refused("{}x", "its header is not JSON at byte 3");
  expect_refused("{}{}", "its header is not JSON at byte 3");
  expect_refused("{\"a\xff\":1}", "its header is not JSON at byte 4");
  expect_refused(R"({"a\ud800":1})", "its header is not JSON");
  expect_refused(R"({"a":1e999})", "its header is not JSON");
  expect_refused(std::string("{}\0x", 4), "its header has a zero byte at byte 3");
  expect_refused(R"({"a":)" + std::string(1'000'000, '['), "\"a\" is an array");
  expect_refused(R"({"a":{"b":)" + std::string(1'000'000, '{'), "the field \"b\"");
}

TEST_F(SafeTensorsTest, RefusesDuplicateKeys) {
  const std::string a = R"("a":{"dtype":"U8","shape":[0],"data_offsets":[0,0]})";
  expect_refused("{" + a + "," + a + "}", "its header has \"a\" twice");
  expect_refused(R"({"__metadata__":{},"__metadata__":{}})", "\"__metadata__\" twice");
  expect_refused(R"({"__metadata__":{"k":"v","k":"v"}})", "\"k\" twice in \"__metadata__\"");
  expect_refused(R"({"a":{"shape":[0],"shape":[0]}})", "tensor \"a\" has its shape twice");
}

TEST_F(SafeTensorsTest, RefusesMetadataThatIsNotText) {
  const std::pair<std::string, std::string> cases[] = {
      {"null", R"("__metadata__" is null; it must be an object)"},
      {"[]", R"("__metadata__" is an array; it must be an object)"},
      {R"({"k":1})", R"(the metadata "k" is 1; it must be a string)"},
      {R"({"k":-1})", R"(the metadata "k" is -1; it must be a string)"},
      {R"({"k":0.5})", R"(the metadata "k" is "0.5"; it must be a string)"},
      {R"({"k":true})", R"(the metadata "k" is true; it must be a string)"},
      {R"({"k":{}})", R"(the metadata "k" is an object; it must be a str)"},
      {R"({"k":[]})", R"(the metadata "k" is an array; it must be a string)"},
  };
  for (const auto& [json, message] : cases) {
    expect_refused(R"({"__metadata__":)" + json + "}", message);
  }
}

TEST_F(SafeTensorsTest, RefusesEntriesOfAWrongType) {
  expect_refused(R"({"a":1})", R"(tensor "a" is 1; it must be an object)");
  expect_refused(R"({"a":"b"})", R"(tensor "a" is "b"; it must be an object)");
  const std::pair<std::string, std::string> fields_of_a[] = {
      {"", R"(tensor "a" lacks one of dtype, shape and data_offsets)"},
      {R"("dtype":"U8","shape":[0])", R"(tensor "a" lacks one of)"},
      {R"("strides":[1])", R"(tensor "a" has the field "strides")"},
      {R"("dtype":3)", R"(the dtype of tensor "a" is 3; it must be a string)"},
      {R"("dtype":["F32"])", R"(the dtype of tensor "a" is an array)"},
      {R"("dtype":"F4")", R"(the dtype of tensor "a" is "F4"; it must be one of U64, I64, F64)"},
      {R"("shape":"x")", R"(the shape of tensor "a" is "x"; it must be an a)"},
      {R"("shape":null)", R"(the shape of tensor "a" is null; it must be an)"},
      {R"("shape":[[1]])", R"(the shape of tensor "a" contains an array; only)"},
      {R"("shape":["1"])", R"(the shape of tensor "a" contains "1"; only non)"},
      {R"("shape":[1.0])", R"(the shape of tensor "a" contains "1.0"; only)"},
      {R"("data_offsets":[0])", "has 1 numbers; it must be [begin, end]"},
      {R"("data_offsets":[0,0,0])", "has more than 2 numbers"},
      {R"("data_offsets":{})", R"(the data_offsets of tensor "a" is an obj)"},
  };
  for (const auto& [fields, message] : fields_of_a) {
    expect_refused(R"({"a":{)" + fields + "}}", message);
  }
}

TEST_F(SafeTensorsTest, RefusesInvalidShapes) {
  const auto refuses = [this](const std::string& shape, const std::string& message) {
    expect_refused(header_of(shape, "[0,0]"), message);
  };
  refuses("[-1]", "contains -1; only non-negative integers");
  refuses("[9223372036854775808]", "contains 9223372036854775808; sizes must fit into 63 bits");
  refuses("[18446744073709551616]", "contains \"18446744073709551616\"; only non-negative");
  // 2^64 elements, which would wrap around to 0.
  refuses("[4294967296,4294967296]", "is too large for any");
  refuses("[0,4294967296,4294967296]", "is too large for");
  // 2^62 elements of 4 bytes, which would also wrap around to 0.
  refuses("[4611686018427387904]", "is too large for any");
  std::string ones = "[1";
  for (int i = 1; i < 64; ++i) ones += ",1";
  EXPECT_EQ(read(file_of(header_of(ones + "]", "[0,4]"), "abcd")).tensors[0].second.dim(), 64);
  expect_refused(header_of(ones + ",1]", "[0,4]"), "more than 64 dimensions", "abcd");
}

TEST_F(SafeTensorsTest, RefusesSizesThatDoNotMatchTheShape) {
  expect_refused(header_of("[2]", "[0,4]"),
                 R"(tensor "a" has 4 bytes; its shape [2] of Float needs 8)", "abcd");
  expect_refused(header_of("[]", "[0,0]"), "has 0 bytes; its shape [] of Float needs");
  expect_refused(header_of("[0]", "[0,4]"), "has 4 bytes; its shape [0]", "abcd");
  expect_refused(header_of("[1]", "[4,0]"), "begins at byte 4 and ends before it, at byte 0",
                 "abcd");
}

TEST_F(SafeTensorsTest, RefusesOffsetsBeyondTheFile) {
  expect_refused(header_of("[1]", "[0,4]"),
                 R"(tensor "a" ends at byte 4 of the data, but there are only 3)", "abc");
  expect_refused(header_of("[1]", "[18446744073709551611,18446744073709551615]"),
                 "ends at byte 18446744073709551615 of the data, but there are only 0");
  expect_refused(header_of("[1]", "[-4,0]"), "contains -4; only non-negative integers");
}

TEST_F(SafeTensorsTest, RefusesGapsAndOverlaps) {
  const auto two = [](const std::string& first, const std::string& second) {
    return R"({"a":{"dtype":"U8","shape":[2],"data_offsets":)" + first +
           R"(},"b":{"dtype":"U8","shape":[2],"data_offsets":)" + second + "}}";
  };
  EXPECT_EQ(read(file_of(two("[2,4]", "[0,2]"), "abcd")).tensors.size(), 2U);
  expect_refused(two("[0,2]", "[1,3]"),
                 R"(tensor "b" begins at byte 1 of the data, within the tensor before it)", "abc");
  expect_refused(two("[0,2]", "[0,2]"), "tensors must not overlap", "ab");
  expect_refused(two("[0,2]", "[3,5]"),
                 R"(bytes 2 to 3 of the data, before tensor "b", belong to no tensor)", "abcde");
  expect_refused(two("[1,3]", "[3,5]"), "bytes 0 to 1 of the data", "abcde");
  expect_refused(two("[0,2]", "[2,4]"), "the last 1 bytes belong to no", "abcde");
  expect_refused("{}", "the last 1 bytes belong to no tensor", "x");
}

TEST_P(SafeTensorsModesTest, RefusesInvalidBools) {
  const std::string json = R"({"m":{"dtype":"BOOL","shape":[3],"data_offsets":[0,3]}})";
  EXPECT_EQ(read(file_of(json, std::string("\1\0\1", 3))).tensors[0].second.sum().item<int>(), 2);
  EXPECT_ERROR(read(file_of(json, std::string("\1\0\2", 3))),
               "tensor \"m\" of dtype BOOL contains the byte 2; only 0 and 1 are allowed");
}

TEST_P(SafeTensorsModesTest, DamageAnywhereNeverCrashes) {
  write_safetensors(path_,
                    {{"a", torch::rand({3, 2})},
                     {"m", torch::tensor({true})},
                     {"e", torch::empty({0, 2})},
                     {"l", torch::arange(2)}},
                    {{"k", "v"}});
  const std::string good = read_bytes(path_);
  const auto read_all = [this](const std::string& bytes) {
    for (const auto& [name, tensor] : read(bytes).tensors) bytes_of(tensor).sum();
  };
  read_all(good);
  const int refused = num_refused(read_all, good, 2000);
  EXPECT_GT(refused, 1000);
  EXPECT_LT(refused, 2000);
  for (std::size_t size = 0; size < good.size(); ++size) {
    EXPECT_FALSE(accepts(read_all, good.substr(0, size))) << "truncated to " << size << " bytes";
  }
}

}  // namespace
}  // namespace linkboy::testing::safetensors_errors_test
