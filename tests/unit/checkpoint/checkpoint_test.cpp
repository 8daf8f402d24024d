#include "linkboy/checkpoint/checkpoint.hpp"

#include <gtest/gtest.h>
#include <torch/cuda.h>
#include <torch/serialize.h>
#include <torch/types.h>

#include <string>
#include <vector>

#include "support/expect_error.hpp"
#include "support/file_contents.hpp"
#include "support/file_size_limit.hpp"
#include "support/temporary_folder.hpp"
#include "unit/checkpoint/damaged_copies.hpp"

namespace linkboy::checkpoint_test {
namespace {

using Names = std::vector<std::string>;

StateDict round_trip(const StateDict& state) {
  const TemporaryFolder folder;
  write_checkpoint(folder / "x.pt", state);
  return read_checkpoint(folder / "x.pt");
}

void expect_same(const at::Tensor& actual, const at::Tensor& expected) {
  ASSERT_EQ(actual.scalar_type(), expected.scalar_type());
  ASSERT_EQ(actual.sizes(), expected.sizes());
  EXPECT_TRUE(torch::equal(actual, expected)) << actual << " is not " << expected;
}

TEST(CheckpointTest, KeepsEveryKindOfValue) {
  c10::Dict<int64_t, std::string> by_index;
  by_index.insert(3, "three");
  by_index.insert(-1, "minus one");
  const auto tuple = c10::ivalue::Tuple::create({1, 0.25, std::string("x")});
  const StateDict state = round_trip({{"int", int64_t{1} << 40},
                                      {"negative", -5},
                                      {"double", -1.5e300},
                                      {"yes", true},
                                      {"no", false},
                                      {"none", c10::IValue()},
                                      {"text", "a \"b\" \n c"},
                                      {"ints", c10::List<int64_t>({1, 300, 70000})},
                                      {"by_index", by_index},
                                      {"tuple", tuple},
                                      {"undefined", at::Tensor()},
                                      {"empty", StateDict().to_ivalue()}});
  EXPECT_EQ(state.get_int("int"), int64_t{1} << 40);
  EXPECT_EQ(state.get_int("negative"), -5);
  EXPECT_EQ(state.get_double("double"), -1.5e300);
  EXPECT_TRUE(state.get_bool("yes"));
  EXPECT_FALSE(state.get_bool("no"));
  EXPECT_TRUE(state.at("none").isNone());
  EXPECT_TRUE(state.at("undefined").isNone());
  EXPECT_EQ(state.get_string("text"), "a \"b\" \n c");
  EXPECT_EQ(state.get_doubles("ints"), (std::vector<double>{1, 300, 70000}));
  EXPECT_EQ(state.at("by_index").toGenericDict().at(-1).toStringRef(), "minus one");
  EXPECT_EQ(state.at("tuple").toTupleRef().elements()[1].toDouble(), 0.25);
  EXPECT_TRUE(state.get_dict("empty").empty());
  EXPECT_EQ(state.entries().front().first, "int");
}

TEST(CheckpointTest, KeepsAnyNumberOfStrings) {
  std::vector<std::string> names;
  StateDict state;
  for (int i = 0; i < 400; ++i) {
    names.push_back("name " + std::to_string(i));
    state.set(names.back(), names.front() + names.back());
  }
  for (const std::string& name : names) state.set("again " + name, names.front() + name);
  const StateDict read = round_trip(state);
  for (const std::string& name : names) {
    EXPECT_EQ(read.get_string(name), names.front() + name);
    EXPECT_EQ(read.get_string("again " + name), names.front() + name);
  }
}

TEST(CheckpointTest, KeepsEveryDtype) {
  for (auto dtype :
       {at::kFloat, at::kDouble, at::kHalf, at::kBFloat16, at::kLong, at::kInt, at::kShort,
        at::kChar, at::kByte, at::kBool, at::kComplexFloat, at::kComplexDouble}) {
    const at::Tensor tensor = torch::arange(6).to(dtype).view({2, 3});
    expect_same(round_trip({{"t", tensor}}).get_tensor("t"), tensor);
  }
  for (auto dtype : {at::kUInt16, at::kUInt32, at::kUInt64, at::kComplexHalf, at::kFloat8_e4m3fn,
                     at::kFloat8_e4m3fnuz, at::kFloat8_e5m2, at::kFloat8_e5m2fnuz,
                     at::kFloat8_e8m0fnu, at::kFloat4_e2m1fn_x2}) {
    const at::Tensor bytes = torch::arange(48, at::kByte).view({2, 24});
    const at::Tensor read = round_trip({{"t", bytes.view(dtype)}}).get_tensor("t");
    EXPECT_EQ(read.scalar_type(), dtype);
    expect_same(read.view(at::kByte), bytes);
  }
}

TEST(CheckpointTest, KeepsShapesAndViews) {
  const at::Tensor base = torch::rand({4, 6});
  const StateDict state = {{"scalar", torch::tensor(2.5)},
                           {"empty", torch::empty({0, 3})},
                           {"transposed", base.t()},
                           {"column", base.select(1, 2)},
                           {"expanded", torch::ones({1}).expand({3})},
                           {"conjugate", torch::rand({2}, at::kComplexFloat).conj()},
                           {"leaf", torch::rand({2}).requires_grad_()}};
  const StateDict loaded = round_trip(state);
  for (const auto& [name, value] : state.entries()) {
    SCOPED_TRACE(name);
    expect_same(loaded.get_tensor(name), value.toTensor());
  }
  EXPECT_EQ(loaded.get_tensor("transposed").strides(), base.t().strides());
  EXPECT_TRUE(loaded.get_tensor("column").is_alias_of(loaded.get_tensor("transposed")));
  EXPECT_FALSE(loaded.get_tensor("leaf").requires_grad());
}

TEST(CheckpointTest, WritesSharedStoragesOnce) {
  const TemporaryFolder folder;
  const at::Tensor large = torch::rand({100000});
  write_checkpoint(folder / "x.pt", {{"a", large}, {"b", large.view({100, 1000})}});
  EXPECT_LT(std::filesystem::file_size(folder / "x.pt"), 500000U);
  const StateDict loaded = read_checkpoint(folder / "x.pt");
  loaded.get_tensor("a").fill_(1);
  EXPECT_EQ(loaded.get_tensor("b").sum().item<float>(), 100000);
}

TEST(CheckpointTest, KeepsViewsOfOneStorageAsDifferentDtypes) {
  const at::Tensor floats = torch::rand({4});
  const StateDict loaded = round_trip({{"floats", floats}, {"ints", floats.view(at::kInt)}});
  expect_same(loaded.get_tensor("floats"), floats);
  expect_same(loaded.get_tensor("ints"), floats.view(at::kInt));
}

TEST(CheckpointTest, CopiesTensorsToTheCpu_CUDA) {
  const at::Tensor base = torch::rand({4, 6}, at::kCUDA);
  const StateDict loaded = round_trip({{"base", base}, {"column", base.select(1, 2)}});
  expect_same(loaded.get_tensor("base"), base.cpu());
  expect_same(loaded.get_tensor("column"), base.select(1, 2).cpu());
  EXPECT_TRUE(loaded.get_tensor("column").is_alias_of(loaded.get_tensor("base")));
}

TEST(CheckpointTest, CreatesFoldersAndReplacesFiles) {
  const TemporaryFolder folder;
  for (const int64_t value : {1, 2}) write_checkpoint(folder / "a/b/x.pt", {{"v", value}});
  EXPECT_EQ(read_checkpoint(folder / "a/b/x.pt").get_int("v"), 2);
  EXPECT_EQ(all_bytes_in(folder.path()).size(), 1U);
}

TEST(CheckpointTest, AFullDiskLeavesTheOldFileIntact) {
  const TemporaryFolder folder;
  write_checkpoint(folder / "x.pt", {{"v", 1}});
  // Writing fails in the first record, in the tensor or in the zip directory at the end.
  for (rlim_t limit : {10, 5000, 80000, 80700}) {
    const FileSizeLimit limited(limit);
    EXPECT_ERROR(write_checkpoint(folder / "x.pt", {{"v", torch::rand({20000})}}), "x.pt\" (File");
  }
  EXPECT_EQ(read_checkpoint(folder / "x.pt").get_int("v"), 1);
  EXPECT_EQ(folder.names(), Names{"x.pt"});
}

TEST(CheckpointTest, RefusesValuesThatAreNotData) {
  const TemporaryFolder folder;
  const auto refuses = [&](const c10::IValue& value, const std::string& message) {
    const StateDict model{{"inner", value}};
    EXPECT_ERROR(write_checkpoint(folder / "x.pt", {{"model", model.to_ivalue()}}), message);
  };
  refuses(c10::Device(at::kCPU), "\"model.inner\" is a Device; a checkpoint can contain");
  refuses(c10::complex<double>(1, 2), "\"model.inner\" is a ComplexDouble");
  refuses(torch::ones({2}).to_sparse(), "\"model.inner\" is a tensor of");
  refuses(at::quantize_per_tensor(torch::ones({2}), 1.0, 0, at::kQInt8),
          "\"model.inner\" is a tensor of");
  refuses(torch::ones({2}, at::kByte).view(at::kBits8), "of floating-point, complex, integer and");
  refuses(torch::ones({2}, at::kMeta), "\"model.inner\" is a tensor of");
  refuses(c10::List<c10::Device>({at::kCPU}), "\"model.inner[0]\" is a Device");
  c10::Dict<c10::complex<double>, int64_t> dict;
  dict.insert(c10::complex<double>(1, 2), 1);
  refuses(dict, "\"model.inner\" has a key that is a ComplexDouble");
  EXPECT_TRUE(folder.names().empty());
}

TEST(CheckpointTest, RefusesDeeplyNestedValues) {
  const TemporaryFolder folder;
  StateDict deep = {{"k", 1}};
  for (int i = 0; i < 100; ++i) deep = {{"k", deep.to_ivalue()}};
  write_checkpoint(folder / "x.pt", deep);
  EXPECT_TRUE(read_checkpoint(folder / "x.pt").contains("k"));
  for (int i = 0; i < 50; ++i) deep = {{"k", deep.to_ivalue()}};
  EXPECT_ERROR(write_checkpoint(folder / "x.pt", deep), "nested deeper than 128 levels");
}

TEST(CheckpointTest, AnUnwritableFileIsAnErrorWithPathAndReason) {
  const TemporaryFolder folder;
  write_bytes(folder / "file", "x");
  EXPECT_ERROR(write_checkpoint(folder / "file/x.pt", {}), "cannot create the folder of");
  for (const auto& path : {folder.path(), folder / ""}) {
    EXPECT_ERROR(write_checkpoint(path, {}), "is the path of a folder; a file is needed");
  }
  EXPECT_ERROR(write_checkpoint("/proc/x.pt", {}), "cannot create \"/proc/x.pt\" (No such");
}

TEST(CheckpointTest, ChecksThatAPathIsWritable) {
  const TemporaryFolder folder;
  check_writable(folder / "new" / "x.pt");
  EXPECT_FALSE(std::filesystem::exists(folder / "new" / "x.pt"));
  write_checkpoint(folder / "x.pt", {{"v", 1}});
  check_writable(folder / "x.pt");
  EXPECT_EQ(read_checkpoint(folder / "x.pt").get_int("v"), 1);
  EXPECT_EQ(folder.names(), (Names{"new", "x.pt"}));
  EXPECT_ERROR(check_writable("/proc/x.pt"), "cannot create \"/proc/x.pt\" (No such file");
  const FileSizeLimit limited(0);
  EXPECT_ERROR(check_writable(folder / "x.pt"), "x.pt\" (File too large)");
}

TEST(CheckpointTest, ErrorsSayWhatKindOfFileItIs) {
  const TemporaryFolder folder;
  EXPECT_ERROR(read_checkpoint(folder / "none.pt"), "none.pt\": No such file");
  EXPECT_ERROR(read_checkpoint(folder.path()), "it is a folder");
  torch::save(torch::ones({1}), folder / "script.pt");
  EXPECT_ERROR(read_checkpoint(folder / "script.pt"), "torch::save archive");
  const auto check = [&](const std::string& bytes, const std::string& message) {
    write_bytes(folder / "x.pt", bytes);
    EXPECT_ERROR(read_checkpoint(folder / "x.pt"), message);
  };
  check("", "x.pt\": it is empty");
  check("hello, world", "it is not a checkpoint");
  check(std::string(257, '\0') + "ustar", "it is a tar archive of PyTorch 0.1");
  write_checkpoint(folder / "x.pt", {{"t", torch::rand({100})}});
  const std::string whole = read_bytes(folder / "x.pt");
  check(whole.substr(0, whole.size() / 2), "x.pt\": it is damaged or cut short");
}

TEST(CheckpointTest, RefusesBigEndianFiles) {
  const TemporaryFolder folder;
  write_checkpoint(folder / "x.pt", {{"v", 1}});
  std::string bytes = read_bytes(folder / "x.pt");
  const auto found = bytes.find("little");
  ASSERT_NE(found, std::string::npos);
  write_bytes(folder / "x.pt", bytes.replace(found, 6, "bigger"));
  EXPECT_ERROR(read_checkpoint(folder / "x.pt"), "\"byteorder\" at offset 192 has the checksum");
  EXPECT_ERROR(read_checkpoint(folder / "x.pt", {.verify_checksums = false}),
               "its byte order is \"bigger\"");
}

TEST(CheckpointTest, DamageAnywhereNeverCrashes) {
  const TemporaryFolder folder;
  const at::Tensor base = torch::rand({4, 6});
  write_checkpoint(folder / "good.pt", {{"model", StateDict{{"w", base.t()}}.to_ivalue()},
                                        {"list", c10::List<int64_t>({1, 2})},
                                        {"none", c10::IValue()},
                                        {"lr", 0.5},
                                        {"again", base}});
  const std::string good = read_bytes(folder / "good.pt");
  const auto read = [&](const std::string& bytes) {
    write_bytes(folder / "bad.pt", bytes);
    const StateDict state = read_checkpoint(folder / "bad.pt");
    for (const auto& [key, value] : state.entries()) {
      if (value.isTensor() && value.toTensor().numel() < 1000) value.toTensor().sum();
    }
  };
  read(good);
  EXPECT_GT(testing::num_refused(read, good, 400), 100);
  for (std::size_t size = 0; size < good.size(); size += 1 + good.size() / 100) {
    EXPECT_FALSE(testing::accepts(read, good.substr(0, size))) << "truncated to " << size;
  }
}

}  // namespace
}  // namespace linkboy::checkpoint_test
