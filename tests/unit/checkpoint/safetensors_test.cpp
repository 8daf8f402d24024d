#include "linkboy/checkpoint/safetensors.hpp"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <torch/types.h>

#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iterator>
#include <random>
#include <string>
#include <vector>

#include "linkboy/checkpoint/checkpoint.hpp"
#include "support/expect_error.hpp"
#include "support/file_contents.hpp"
#include "support/python_peer.hpp"
#include "support/temporary_folder.hpp"

namespace linkboy::safetensors_test {
namespace {

using Names = std::vector<std::string>;

// A file by hand: the length, this header, these bytes.
std::string file_of(const std::string& json, const std::string& data = "") {
  const uint64_t length = json.size();
  std::string bytes(sizeof(length), '\0');
  std::memcpy(bytes.data(), &length, sizeof(length));
  return bytes + json + data;
}

at::Tensor bytes_of(const at::Tensor& tensor) {
  return tensor.contiguous().view({-1}).view(at::kByte);
}

// In every bit: there is no equality for some of the dtypes.
void expect_same(const at::Tensor& actual, const at::Tensor& expected) {
  ASSERT_EQ(actual.scalar_type(), expected.scalar_type());
  ASSERT_EQ(actual.sizes(), expected.sizes());
  EXPECT_TRUE(actual.is_contiguous());
  EXPECT_TRUE(torch::equal(bytes_of(actual), bytes_of(expected.resolve_conj())));
}

at::Tensor tensor_of(const SafeTensors& contents, const std::string& name) {
  for (const auto& [key, tensor] : contents.tensors) {
    if (key == name) return tensor;
  }
  ADD_FAILURE() << "there is no " << name;
  return {};
}

Names names_of(const SafeTensors& contents) {
  Names names;
  for (const auto& named : contents.tensors) names.push_back(named.first);
  return names;
}

const std::vector<at::ScalarType>& dtypes() {
  static const std::vector<at::ScalarType> all = {at::kUInt64,
                                                  at::kLong,
                                                  at::kDouble,
                                                  at::kComplexFloat,
                                                  at::kFloat,
                                                  at::kUInt32,
                                                  at::kInt,
                                                  at::kBFloat16,
                                                  at::kHalf,
                                                  at::kUInt16,
                                                  at::kShort,
                                                  at::ScalarType::Float8_e5m2fnuz,
                                                  at::ScalarType::Float8_e4m3fnuz,
                                                  at::ScalarType::Float8_e8m0fnu,
                                                  at::ScalarType::Float8_e4m3fn,
                                                  at::ScalarType::Float8_e5m2,
                                                  at::kChar,
                                                  at::kByte,
                                                  at::kBool};
  return all;
}

// The bytes 0, 1, 2 and so on (bool: in turn 0 and 1), as 2 x 3 elements.
at::Tensor pattern(at::ScalarType dtype) {
  const auto num_bytes = 6 * static_cast<int64_t>(c10::elementSize(dtype));
  const at::Tensor bytes = torch::arange(num_bytes, at::kByte);
  return (dtype == at::kBool ? bytes.remainder(2) : bytes).view(dtype).view({2, 3});
}

NamedTensors one_of_each_dtype() {
  NamedTensors tensors;
  for (const auto dtype : dtypes()) tensors.emplace_back(c10::toString(dtype), pattern(dtype));
  return tensors;
}

class SafeTensorsTest : public ::testing::Test {
 protected:
  SafeTensors read(const std::string& bytes, bool mmap = true) const {
    write_bytes(path_, bytes);
    return read_safetensors(path_, mmap);
  }

  TemporaryFolder folder_;
  std::filesystem::path path_ = folder_ / "x.safetensors";
};

// The same with and without mmap.
class SafeTensorsModesTest : public SafeTensorsTest, public ::testing::WithParamInterface<bool> {
 protected:
  SafeTensors read() const { return read_safetensors(path_, GetParam()); }
  SafeTensors read(const std::string& bytes) const {
    return SafeTensorsTest::read(bytes, GetParam());
  }
};

INSTANTIATE_TEST_SUITE_P(Mmap, SafeTensorsModesTest, ::testing::Bool(),
                         [](const auto& info) { return info.param ? "Mapped" : "Read"; });

TEST_P(SafeTensorsModesTest, KeepsEveryDtype) {
  const NamedTensors tensors = one_of_each_dtype();
  write_safetensors(path_, tensors);
  const SafeTensors loaded = read();
  ASSERT_EQ(loaded.tensors.size(), tensors.size());
  // The dtypes are in the order of the file.
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    SCOPED_TRACE(tensors[i].first);
    EXPECT_EQ(loaded.tensors[i].first, tensors[i].first);
    expect_same(loaded.tensors[i].second, tensors[i].second);
  }
  EXPECT_TRUE(loaded.metadata.empty());
}

TEST_P(SafeTensorsModesTest, KeepsShapesAndViews) {
  const at::Tensor base = torch::rand({4, 6});
  const NamedTensors tensors = {
      {"scalar", torch::tensor(2.5)},
      {"empty", torch::empty({0, 3})},
      {"empty in the middle", torch::empty({2, 0, 3}, at::kLong)},
      {"transposed", base.t()},
      {"column", base.select(1, 2)},
      {"rows", base.narrow(0, 1, 2)},
      {"strided bytes", torch::arange(8, at::kByte).view(at::kUInt16).slice(0, 0, 4, 2)},
      {"strided float8",
       torch::arange(8, at::kByte).view(at::ScalarType::Float8_e4m3fn).slice(0, 1, 8, 3)},
      {"expanded", torch::ones({1}).expand({3})},
      {"channels last", torch::rand({2, 3, 4, 5}).contiguous(at::MemoryFormat::ChannelsLast)},
      {"conjugate", torch::rand({2}, at::kComplexFloat).conj()},
      {"negated", at::imag(torch::rand({2}, at::kComplexFloat).conj())},
      {"zero", at::_efficientzerotensor({3}, at::kFloat)},
      {"leaf", torch::rand({2}).requires_grad_()},
      {"64 dimensions", torch::rand({1}).view(std::vector<int64_t>(64, 1))}};
  write_safetensors(path_, tensors);
  const SafeTensors loaded = read();
  ASSERT_EQ(loaded.tensors.size(), tensors.size());
  for (const auto& [name, tensor] : tensors) {
    SCOPED_TRACE(name);
    expect_same(tensor_of(loaded, name), tensor.detach().resolve_neg().clone());
    EXPECT_FALSE(tensor_of(loaded, name).requires_grad());
  }
}

TEST_P(SafeTensorsModesTest, KeepsNamesAndMetadata) {
  const std::map<std::string, std::string> metadata = {
      {"", "empty"}, {"format", "pt"}, {"gr\u00fcn \"x\"", "a\n\x01\\"}};
  const NamedTensors tensors = {{"", torch::ones({1})},
                                {"gr\u00fcn", torch::ones({2})},
                                {std::string("z\0\n\"", 4), torch::ones({3})}};
  write_safetensors(path_, tensors, metadata);
  EXPECT_EQ(read().metadata, metadata);
  EXPECT_EQ(names_of(read()), (Names{"", "gr\u00fcn", std::string("z\0\n\"", 4)}));
}

TEST_P(SafeTensorsModesTest, KeepsFilesWithoutTensors) {
  write_safetensors(path_, {});
  EXPECT_EQ(read_bytes(path_), file_of("{}      "));
  EXPECT_TRUE(read().tensors.empty());
  write_safetensors(path_, {}, {{"k", "v"}});
  EXPECT_EQ(read().metadata.at("k"), "v");
}

TEST_P(SafeTensorsModesTest, ReadsTensorsThatLieUnaligned) {
  const auto values = torch::tensor({1.5, 2.5}, at::kDouble);
  const std::string data(static_cast<const char*>(values.const_data_ptr()), 16);
  const std::string entry = R"("x":{"shape":[2],"data_offsets":[1,17],"dtype":"F64"})";
  for (int padding = 0; padding < 8; ++padding) {
    const SafeTensors loaded =
        read(file_of("{" + entry + R"(,"b":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}})" +
                         std::string(padding, ' '),
                     "\x07" + data));
    EXPECT_EQ(names_of(loaded), (Names{"b", "x"}));
    expect_same(tensor_of(loaded, "x"), values);
    EXPECT_EQ(tensor_of(loaded, "b").item<int>(), 7);
    EXPECT_EQ(reinterpret_cast<uintptr_t>(tensor_of(loaded, "x").const_data_ptr()) % 8, 0U);
  }
}

TEST_P(SafeTensorsModesTest, OrdersTensorsByTheirPlaceInTheFile) {
  const SafeTensors loaded = read(file_of(R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[2,3]},
                       "c":{"dtype":"U8","shape":[0],"data_offsets":[2,2]},
                       "b":{"dtype":"U8","shape":[2],"data_offsets":[0,2]}})",
                                          "xyz"));
  EXPECT_EQ(names_of(loaded), (Names{"b", "c", "a"}));
}

TEST_P(SafeTensorsModesTest, WritesAFileThatItsTensorsComeFrom) {
  write_safetensors(path_, {{"a", torch::arange(1000)}, {"b", torch::ones({3})}});
  const SafeTensors loaded = read();
  write_safetensors(path_, {loaded.tensors[0]}, {{"k", "v"}});
  expect_same(tensor_of(read(), "a"), torch::arange(1000));
  expect_same(tensor_of(loaded, "b"), torch::ones({3}));
}

TEST_P(SafeTensorsModesTest, LeavesTheFileAsItIsWhenTensorsAreWritten) {
  write_safetensors(path_, {{"a", torch::arange(1000)}, {"b", torch::arange(1000)}});
  const std::string before = read_bytes(path_);
  const SafeTensors loaded = read();
  tensor_of(loaded, "a").fill_(7);
  EXPECT_EQ(tensor_of(loaded, "a").sum().item<int64_t>(), 7000);
  expect_same(tensor_of(loaded, "b"), torch::arange(1000));
  expect_same(tensor_of(read(), "a"), torch::arange(1000));
  EXPECT_EQ(read_bytes(path_), before);
}

TEST_P(SafeTensorsModesTest, KeepsTheMemoryAsLongAsAnyTensor) {
  write_safetensors(path_, {{"a", torch::arange(100000)}, {"b", torch::ones({3})}});
  at::Tensor middle;
  {
    const StateDict state(read().tensors);
    middle = state.get_tensor("a").narrow(0, 50000, 2);
  }
  std::filesystem::remove(path_);
  EXPECT_EQ(middle.sum().item<int64_t>(), 100001);
  middle.fill_(1);
  EXPECT_EQ(middle.sum().item<int64_t>(), 2);
}

TEST_P(SafeTensorsModesTest, GivesEachTensorItsOwnStorage) {
  write_safetensors(path_, {{"a", torch::arange(4)}, {"b", torch::ones({300})}});
  const SafeTensors loaded = read();
  EXPECT_EQ(tensor_of(loaded, "a").storage().nbytes(), 32U);
  EXPECT_FALSE(tensor_of(loaded, "a").is_alias_of(tensor_of(loaded, "b")));
  write_checkpoint(folder_ / "x.pt", StateDict(loaded.tensors));
  expect_same(read_checkpoint(folder_ / "x.pt").get_tensor("b"), torch::ones({300}));
}

TEST_F(SafeTensorsTest, MapsTheFile) {
  write_safetensors(path_, {{"a", torch::rand({5000})}});
  const SafeTensors loaded = read_safetensors(path_);
  std::ifstream maps("/proc/self/maps");
  const std::string text(std::istreambuf_iterator<char>(maps), {});
  EXPECT_NE(text.find(path_.string()), std::string::npos);
}

TEST_F(SafeTensorsTest, UnmapsTheFileWithItsLastTensor) {
  write_safetensors(path_, {{"a", torch::rand({5000})}, {"b", torch::rand({5000})}});
  read_safetensors(path_);
  EXPECT_ERROR(read(read_bytes(path_) + "x"), "belong to no tensor");
  std::ifstream maps("/proc/self/maps");
  const std::string text(std::istreambuf_iterator<char>(maps), {});
  EXPECT_EQ(text.find(path_.string()), std::string::npos);
}

TEST_F(SafeTensorsTest, LaysFilesOutAsTheFormatsLibraryDoes) {
  write_safetensors(path_,
                    {{"bool", torch::tensor({true})},
                     {"b", torch::tensor({1.0F})},
                     {"a", torch::tensor({2.0F})},
                     {"double", torch::tensor({1.0}, at::kDouble)}},
                    {{"k", "v"}});
  const std::string json = R"({"__metadata__":{"k":"v"},)"
                           R"("double":{"dtype":"F64","shape":[1],"data_offsets":[0,8]},)"
                           R"("a":{"dtype":"F32","shape":[1],"data_offsets":[8,12]},)"
                           R"("b":{"dtype":"F32","shape":[1],"data_offsets":[12,16]},)"
                           R"("bool":{"dtype":"BOOL","shape":[1],"data_offsets":[16,17]}})";
  const std::string padding((8 - json.size() % 8) % 8, ' ');
  const std::string data("\0\0\0\0\0\0\xf0\x3f\0\0\0\x40\0\0\x80\x3f\x01", 17);
  EXPECT_EQ(read_bytes(path_), file_of(json + padding, data));
}

TEST_F(SafeTensorsTest, CopiesTensorsFromADevice_CUDA) {
  const at::Tensor base = torch::rand({40, 6}, at::kCUDA);
  write_safetensors(path_, {{"base", base}, {"transposed", base.t()}});
  expect_same(tensor_of(read_safetensors(path_), "base"), base.cpu());
  expect_same(tensor_of(read_safetensors(path_), "transposed"), base.t().cpu().contiguous());
}

TEST_F(SafeTensorsTest, RefusesToWriteWhatTheFormatLacks) {
  write_safetensors(path_, {{"old", torch::ones({1})}});
  const auto write = [this](const at::Tensor& tensor) {
    write_safetensors(path_, {{"w", tensor}});
  };
  EXPECT_ERROR(write(torch::ones({1}, at::kComplexDouble)),
               "x.safetensors\": tensor \"w\": its dtype is ComplexDouble; the format has U64");
  EXPECT_ERROR(write(at::quantize_per_tensor(torch::ones({1}), 1.0, 0, at::kQInt8)),
               "its dtype is QInt8");
  EXPECT_ERROR(write(torch::ones({2}).to_sparse()), "its layout is Sparse; the format has dense");
  EXPECT_ERROR(write(torch::ones({2}, at::kMeta)), "it is on the meta device");
  EXPECT_ERROR(write(at::Tensor()), "tensor \"w\": it is undefined");
  EXPECT_EQ(names_of(read_safetensors(path_)), Names{"old"});
  EXPECT_EQ(folder_.names(), Names{"x.safetensors"});
}

TEST_F(SafeTensorsTest, RefusesToWriteNamesThatTheFormatLacks) {
  const at::Tensor one = torch::ones({1});
  EXPECT_ERROR(
      write_safetensors(path_, {{"w", one}, {"v", one}, {"w", torch::ones({1}, at::kInt)}}),
      "two tensors are named \"w\"");
  EXPECT_ERROR(write_safetensors(path_, {{"__metadata__", one}}), "a tensor is named \"__metadata");
  EXPECT_ERROR(write_safetensors(path_, {{"a\xff", one}}), "is not UTF-8");
  EXPECT_ERROR(write_safetensors(path_, {}, {{"k", "\xc3"}}), "is not UTF-8");
  EXPECT_ERROR(write_safetensors(path_, {}, {{"k", std::string(100'000'000, 'x')}}),
               "the header takes 100000032 bytes; the format allows 100000000");
  EXPECT_TRUE(folder_.names().empty());
}

TEST_F(SafeTensorsTest, NamesThePathWhenAFileCannotBeWritten) {
  EXPECT_ERROR(write_safetensors(folder_.path(), {}), "names a folder; a file is needed");
  EXPECT_ERROR(write_safetensors("/proc/x.safetensors", {}), "cannot create \"/proc/x.safetensors");
}

TEST_F(SafeTensorsTest, SaysWhatAFileIsThatItCannotRead) {
  EXPECT_ERROR(read_safetensors(folder_ / "none"), "none\": No such file or directory");
  EXPECT_ERROR(read_safetensors(folder_.path()), "it is a folder; a file is needed");
  ASSERT_EQ(::mkfifo((folder_ / "pipe").c_str(), 0600), 0);
  EXPECT_ERROR(read_safetensors(folder_ / "pipe"), "it is no regular file");
  EXPECT_ERROR(read(""), "x.safetensors\": it is empty");
  EXPECT_ERROR(read("123456789"), "it has 9 bytes; a safetensors file has at least 10");
  EXPECT_ERROR(read("hello, world"), "It is not a safetensors file, damaged or cut short");
  write_checkpoint(path_, {{"v", 1}});
  EXPECT_ERROR(read_safetensors(path_), "It is not a safetensors file");
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
  // Sparse, so that it takes no room.
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

TEST_F(SafeTensorsTest, RefusesKeysThatComeTwice) {
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

TEST_F(SafeTensorsTest, RefusesEntriesOfAWrongKind) {
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
  EXPECT_ERROR(read_tensor(R"("shape":[[1]])"), "the shape of tensor \"a\" holds an array; whole");
  EXPECT_ERROR(read_tensor(R"("shape":["1"])"), "the shape of tensor \"a\" holds \"1\"; whole num");
  EXPECT_ERROR(read_tensor(R"("shape":[1.0])"), "the shape of tensor \"a\" holds \"1.0\"; whole");
  EXPECT_ERROR(read_tensor(R"("data_offsets":[0])"), "has 1 numbers; it must be [begin, end]");
  EXPECT_ERROR(read_tensor(R"("data_offsets":[0,0,0])"), "has more than 2 numbers");
  EXPECT_ERROR(read_tensor(R"("data_offsets":{})"), "the data_offsets of tensor \"a\" is an obj");
}

// A header with one tensor, F32.
std::string header_of(const std::string& shape, const std::string& offsets) {
  return R"({"a":{"dtype":"F32","shape":)" + shape + R"(,"data_offsets":)" + offsets + "}}";
}

TEST_F(SafeTensorsTest, RefusesShapesThatNoTensorHas) {
  EXPECT_ERROR(read(file_of(header_of("[-1]", "[0,4]"))), "holds -1; whole numbers from 0 up");
  EXPECT_ERROR(read(file_of(header_of("[9223372036854775808]", "[0,0]"))),
               "holds 9223372036854775808; sizes must fit into 63 bits");
  EXPECT_ERROR(read(file_of(header_of("[18446744073709551616]", "[0,0]"))),
               "holds \"18446744073709551616\"; whole numbers");
  // 2^64 elements, which wrap around to none.
  EXPECT_ERROR(read(file_of(header_of("[4294967296,4294967296]", "[0,0]"))),
               "is too large for any");
  EXPECT_ERROR(read(file_of(header_of("[0,4294967296,4294967296]", "[0,0]"))), "is too large for");
  // 2^62 elements of 4 bytes, which wrap around as well.
  EXPECT_ERROR(read(file_of(header_of("[4611686018427387904]", "[0,0]"))), "is too large for any");
  std::string ones = "[1";
  for (int i = 1; i < 64; ++i) ones += ",1";
  EXPECT_EQ(read(file_of(header_of(ones + "]", "[0,4]"), "abcd")).tensors[0].second.dim(), 64);
  EXPECT_ERROR(read(file_of(header_of(ones + ",1]", "[0,4]"), "abcd")), "more than 64 dimensions");
}

TEST_F(SafeTensorsTest, RefusesSizesThatAreNotThoseOfTheShape) {
  EXPECT_ERROR(read(file_of(header_of("[2]", "[0,4]"), "abcd")),
               "tensor \"a\" has 4 bytes; its shape [2] of Float takes 8");
  EXPECT_ERROR(read(file_of(header_of("[]", "[0,0]"))), "has 0 bytes; its shape [] of Float takes");
  EXPECT_ERROR(read(file_of(header_of("[0]", "[0,4]"), "abcd")), "has 4 bytes; its shape [0]");
  EXPECT_ERROR(read(file_of(header_of("[1]", "[4,0]"), "abcd")),
               "begins at byte 4 and ends before that, at 0");
}

TEST_F(SafeTensorsTest, RefusesOffsetsBeyondTheFile) {
  EXPECT_ERROR(read(file_of(header_of("[1]", "[0,4]"), "abc")),
               "tensor \"a\" ends at byte 4 of the data, but there are only 3");
  EXPECT_ERROR(read(file_of(header_of("[1]", "[18446744073709551611,18446744073709551615]"))),
               "ends at byte 18446744073709551615 of the data, but there are only 0");
  EXPECT_ERROR(read(file_of(header_of("[1]", "[-4,0]"))), "holds -4; whole numbers from 0 up");
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

TEST_P(SafeTensorsModesTest, RefusesBoolsThatAreNeitherTrueNorFalse) {
  const std::string json = R"({"m":{"dtype":"BOOL","shape":[3],"data_offsets":[0,3]}})";
  EXPECT_EQ(read(file_of(json, std::string("\1\0\1", 3))).tensors[0].second.sum().item<int>(), 2);
  EXPECT_ERROR(read(file_of(json, std::string("\1\0\2", 3))),
               "tensor \"m\" of dtype BOOL holds the byte 2; 0 and 1 are allowed");
}

TEST_F(SafeTensorsTest, ShowsLongAndUnprintableNamesCut) {
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

TEST_F(SafeTensorsTest, TellsItsFilesFromOthers) {
  write_safetensors(path_, {{"a", torch::ones({1})}});
  EXPECT_TRUE(is_safetensors(path_));
  write_checkpoint(folder_ / "x.pt", {{"v", 1}});
  EXPECT_FALSE(is_safetensors(folder_ / "x.pt"));
  EXPECT_FALSE(is_safetensors(folder_ / "none"));
  EXPECT_FALSE(is_safetensors(folder_.path()));
  ASSERT_EQ(::mkfifo((folder_ / "pipe").c_str(), 0600), 0);
  EXPECT_FALSE(is_safetensors(folder_ / "pipe"));
  for (const auto& bytes : {std::string(), std::string("{}"), file_of("[]"), file_of(""),
                            file_of("{}").substr(0, 9), std::string(20, '{')}) {
    write_bytes(path_, bytes);
    EXPECT_FALSE(is_safetensors(path_));
  }
}

// Reads and uses every byte; true if nothing was found wrong.
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

TEST_P(SafeTensorsModesTest, RefusesAFileCutShortAnywhere) {
  write_safetensors(path_, {{"a", torch::rand({3})}, {"m", torch::tensor({true})}}, {{"k", "v"}});
  const std::string good = read_bytes(path_);
  ASSERT_TRUE(try_to_read(path_, GetParam()));
  for (std::size_t size = 0; size < good.size(); ++size) {
    write_bytes(path_, good.substr(0, size));
    EXPECT_FALSE(try_to_read(path_, GetParam())) << "cut to " << size << " bytes";
  }
}

TEST_P(SafeTensorsModesTest, SurvivesDamageAnywhereInAFile) {
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

// Exchange with Python's safetensors. Set LINKBOY_PYTHON to a Python that has it and torch.
class SafeTensorsPythonTest : public SafeTensorsTest {
 protected:
  void SetUp() override { SKIP_WITHOUT_PYTHON(); }

  static void run_peer(const std::string& command, const std::filesystem::path& path) {
    run_python("safetensors_peer.py", {command, path.string()});
  }
};

TEST_F(SafeTensorsPythonTest, WritesTheBytesThatPythonWrites) {
  NamedTensors tensors = one_of_each_dtype();
  tensors.emplace_back("gr\u00fcn \"x\"\n", torch::arange(6, at::kFloat).view({2, 3}).t());
  tensors.emplace_back("scalar", torch::tensor(2.5));
  tensors.emplace_back("empty", torch::zeros({0, 3}));
  write_safetensors(path_, tensors, {{"format", "a \"b\"\n\x01\u00fc"}});
  run_peer("read", path_);
}

TEST_F(SafeTensorsPythonTest, ReadsWhatPythonWrites) {
  run_peer("write", folder_.path());
  for (const bool mmap : {false, true}) {
    const SafeTensors loaded = read_safetensors(folder_ / "python.safetensors", mmap);
    EXPECT_EQ(loaded.metadata, (std::map<std::string, std::string>{{"a", "1"}, {"format", "pt"}}));
    ASSERT_EQ(loaded.tensors.size(), dtypes().size() + 3);
    for (const auto dtype : dtypes()) {
      SCOPED_TRACE(c10::toString(dtype));
      expect_same(tensor_of(loaded, c10::toString(dtype)), pattern(dtype));
    }
    expect_same(tensor_of(loaded, "gr\u00fcn"), torch::arange(6, at::kFloat).view({2, 3}));
    expect_same(tensor_of(loaded, "scalar"), torch::tensor(2.5, at::kDouble));
    expect_same(tensor_of(loaded, "empty"), torch::zeros({0, 3}));
  }
  EXPECT_TRUE(read_safetensors(folder_ / "none.safetensors").tensors.empty());
}

}  // namespace
}  // namespace linkboy::safetensors_test
