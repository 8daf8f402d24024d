#include <gtest/gtest.h>
#include <torch/types.h>

#include <string>

#include "support/python_peer.hpp"
#include "unit/checkpoint/safetensors_file.hpp"

namespace linkboy::testing::safetensors_python_test {
namespace {

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
}  // namespace linkboy::testing::safetensors_python_test
