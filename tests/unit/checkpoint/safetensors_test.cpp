#include "linkboy/checkpoint/safetensors.hpp"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <torch/types.h>

#include <string>
#include <vector>

#include "linkboy/checkpoint/checkpoint.hpp"
#include "support/python_peer.hpp"
#include "unit/checkpoint/safetensors_file.hpp"

namespace linkboy::testing::safetensors_test {
namespace {

using Names = std::vector<std::string>;

INSTANTIATE_TEST_SUITE_P(Mmap, SafeTensorsModesTest, ::testing::Bool(),
                         [](const auto& info) { return info.param ? "Mapped" : "Read"; });

TEST_P(SafeTensorsModesTest, KeepsEveryDtype) {
  const NamedTensors tensors = one_of_each_dtype();
  write_safetensors(path_, tensors);
  const SafeTensors loaded = read();
  ASSERT_EQ(loaded.tensors.size(), tensors.size());
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

TEST_P(SafeTensorsModesTest, ReadsUnalignedTensors) {
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

TEST_P(SafeTensorsModesTest, OrdersTensorsByTheirPositionInTheFile) {
  const SafeTensors loaded = read(file_of(R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[2,3]},
                       "c":{"dtype":"U8","shape":[0],"data_offsets":[2,2]},
                       "b":{"dtype":"U8","shape":[2],"data_offsets":[0,2]}})",
                                          "xyz"));
  EXPECT_EQ(names_of(loaded), (Names{"b", "c", "a"}));
}

TEST_P(SafeTensorsModesTest, CanOverwriteTheFileItsTensorsAreMappedFrom) {
  write_safetensors(path_, {{"a", torch::arange(1000)}, {"b", torch::ones({3})}});
  const SafeTensors loaded = read();
  write_safetensors(path_, {loaded.tensors[0]}, {{"k", "v"}});
  expect_same(tensor_of(read(), "a"), torch::arange(1000));
  expect_same(tensor_of(loaded, "b"), torch::ones({3}));
}

TEST_P(SafeTensorsModesTest, WritingToTensorsDoesNotChangeTheFile) {
  write_safetensors(path_, {{"a", torch::arange(1000)}, {"b", torch::arange(1000)}});
  const std::string before = read_bytes(path_);
  const SafeTensors loaded = read();
  tensor_of(loaded, "a").fill_(7);
  EXPECT_EQ(tensor_of(loaded, "a").sum().item<int64_t>(), 7000);
  expect_same(tensor_of(loaded, "b"), torch::arange(1000));
  expect_same(tensor_of(read(), "a"), torch::arange(1000));
  EXPECT_EQ(read_bytes(path_), before);
}

TEST_P(SafeTensorsModesTest, KeepsTheMemoryWhileAnyTensorExists) {
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

TEST_P(SafeTensorsModesTest, GivesEachTensorASeparateStorage) {
  write_safetensors(path_, {{"a", torch::arange(4)}, {"b", torch::ones({300})}});
  const SafeTensors loaded = read();
  EXPECT_EQ(tensor_of(loaded, "a").storage().nbytes(), 32U);
  EXPECT_FALSE(tensor_of(loaded, "a").is_alias_of(tensor_of(loaded, "b")));
  write_checkpoint(folder_ / "x.pt", StateDict(loaded.tensors));
  expect_same(read_checkpoint(folder_ / "x.pt").get_tensor("b"), torch::ones({300}));
}

TEST_F(SafeTensorsTest, TheFileIsMappedUntilItsLastTensorIsDestroyed) {
  write_safetensors(path_, {{"a", torch::rand({5000})}, {"b", torch::rand({5000})}});
  const auto is_mapped = [this] {
    return read_bytes("/proc/self/maps").find(path_.string()) != std::string::npos;
  };
  {
    const SafeTensors loaded = read_safetensors(path_);
    EXPECT_TRUE(is_mapped());
  }
  EXPECT_FALSE(is_mapped());
  EXPECT_ERROR(read(read_bytes(path_) + "x"), "belong to no tensor");
  EXPECT_FALSE(is_mapped());
}

TEST_F(SafeTensorsTest, LaysFilesOutLikeTheReferenceLibrary) {
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

TEST_F(SafeTensorsTest, DistinguishesItsFilesFromOthers) {
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

// Exchanges files with Python's safetensors. Set LINKBOY_PYTHON to a Python that has safetensors
// and torch.
class SafeTensorsPythonTest : public SafeTensorsTest {
 protected:
  void SetUp() override { SKIP_WITHOUT_PYTHON(); }

  static void run_peer(const std::string& command, const std::filesystem::path& path) {
    run_python("safetensors_peer.py", {command, path.string()});
  }
};

TEST_F(SafeTensorsPythonTest, WritesTheSameBytesAsPython) {
  NamedTensors tensors = one_of_each_dtype();
  tensors.emplace_back("gr\u00fcn \"x\"\n", torch::arange(6, at::kFloat).view({2, 3}).t());
  tensors.emplace_back("scalar", torch::tensor(2.5));
  tensors.emplace_back("empty", torch::zeros({0, 3}));
  write_safetensors(path_, tensors, {{"format", "a \"b\"\n\x01\u00fc"}});
  run_peer("read", path_);
}

TEST_F(SafeTensorsPythonTest, ReadsFilesOfPython) {
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
}  // namespace linkboy::testing::safetensors_test
