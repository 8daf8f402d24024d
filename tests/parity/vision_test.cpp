// Compares linkboy::vision with torchvision and Pillow on the same machine. The results are
// bit-identical.

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "linkboy/checkpoint/checkpoint.hpp"
#include "linkboy/model.hpp"
#include "linkboy/vision.hpp"
#include "support/python_peer.hpp"
#include "support/temporary_folder.hpp"

namespace linkboy::vision::vision_parity_test {
namespace {

/// The side for `resize` and the size for `center_crop`, as in vision_peer.py.
const std::vector<std::pair<int64_t, ImageSize>> kResized{
    {40, {33, 40}}, {17, {16, 16}}, {150, {100, 111}}, {64, {1, 1}}};

std::array<int64_t, 1> one(int64_t index) { return {index}; }

/// Holds the output of vision_peer.py, which runs once for all tests.
class VisionParityTest : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    if (python_interpreter().empty()) return;
    folder_ = std::make_unique<TemporaryFolder>();
    answer_ = run_python_json("vision_peer.py", {"images", folder_->path().string()});
    if (!answer_.contains("missing")) expected_ = read_checkpoint(*folder_ / "expected.pt");
  }
  static void TearDownTestSuite() { folder_.reset(); }

  void SetUp() override {
    SKIP_WITHOUT_PYTHON();
    SKIP_IF_MISSING(answer_);
  }

  static std::vector<std::string> strings(const std::string& key) {
    std::vector<std::string> result;
    for (const auto& value : expected_.at(key).toListRef()) result.push_back(value.toStringRef());
    return result;
  }

  static ImageFolder folder(const ImageFolderOptions& options = {}) {
    return ImageFolder(*folder_ / "data", options);
  }

  static std::unique_ptr<TemporaryFolder> folder_;
  static nlohmann::json answer_;
  static StateDict expected_;
};

std::unique_ptr<TemporaryFolder> VisionParityTest::folder_;
nlohmann::json VisionParityTest::answer_;
StateDict VisionParityTest::expected_;

/// Expects two images to be equal. Otherwise reports the number of differences and the largest one.
void expect_equal_images(const at::Tensor& found, const at::Tensor& expected,
                         const std::string& name) {
  ASSERT_EQ(found.sizes(), expected.sizes()) << name;
  const auto difference = (found.to(torch::kInt) - expected.to(torch::kInt)).abs();
  EXPECT_TRUE(torch::equal(found, expected))
      << name << ": " << difference.gt(0).sum().item<int64_t>() << " values differ, by up to "
      << difference.max().item<int64_t>();
}

TEST_F(VisionParityTest, ImageFolderListsClassesAndFilesInTorchvisionsOrder) {
  const ImageFolder data = folder();
  EXPECT_EQ(data.classes(), strings("classes"));
  const std::vector<std::string> paths = strings("paths");
  ASSERT_EQ(data.samples().size(), paths.size());
  for (std::size_t i = 0; i < paths.size(); ++i) {
    EXPECT_EQ(data.samples()[i].path.string(), paths[i]);
    EXPECT_EQ(data.samples()[i].label, expected_.at("labels").toListRef()[i].toInt());
  }
}

TEST_F(VisionParityTest, DecodedPixelsEqualPillow) {
  const std::vector<std::string> paths = strings("paths");
  ASSERT_GT(paths.size(), 90);
  for (std::size_t i = 0; i < paths.size(); ++i) {
    expect_equal_images(decode_image(paths[i]), expected_.get_tensor(c10::str(i, " pixels")),
                        paths[i]);
  }
}

TEST_F(VisionParityTest, ResizedPixelsEqualPillow) {
  for (const auto& [side, crop] : kResized) {
    ImageFolder data = folder({.resize = side});
    for (int64_t i = 0; i < data.size(); ++i) {
      const at::Tensor image = data.get_samples(one(i))[0].input();
      const at::Tensor expected = expected_.get_tensor(c10::str(i, " resized to ", side));
      expect_equal_images(image, expected, data.samples()[i].path);
      const at::Tensor pixels = expected_.get_tensor(c10::str(i, " pixels"));
      expect_equal_images(resize_image(pixels, {expected.size(1), expected.size(2)}), expected,
                          data.samples()[i].path);
    }
  }
}

TEST_F(VisionParityTest, CentreCropsEqualPillow) {
  int64_t num_compared = 0;
  for (const auto& [side, crop] : kResized) {
    ImageFolder data = folder({.resize = side, .center_crop = crop});
    for (int64_t i = 0; i < data.size(); ++i) {
      const std::string key = c10::str(i, " cut out of ", side);
      if (!expected_.contains(key)) continue;  // the image is smaller
      ++num_compared;
      expect_equal_images(data.get_batch(one(i)).input()[0], expected_.get_tensor(key),
                          data.samples()[i].path);
    }
  }
  EXPECT_GT(num_compared, 300);
}

struct ResNetCase {
  int64_t depth;
  bool zero_init_residual;
};

struct VisionResNetParityTest : ::testing::TestWithParam<ResNetCase> {};

TEST_P(VisionResNetParityTest, WeightsAndScoresOfASeedEqualTorchvision) {
  static const TemporaryFolder folder;
  static const auto answer = run_python_json("vision_peer.py", {"resnet", folder.path().string()});
  SKIP_IF_MISSING(answer);
  const auto [depth, zero_init_residual] = GetParam();
  const StateDict expected =
      read_checkpoint(folder / c10::str(depth, "-", zero_init_residual ? 1 : 0, ".pt"));
  const StateDict weights = expected.get_dict("state");

  torch::manual_seed(3);
  const ResNet network(depth,
                       ResNetOptions{.num_classes = 10, .zero_init_residual = zero_init_residual});
  Model model(network);
  std::vector<std::string> names;
  std::vector<std::string> expected_names;
  for (const auto& [name, value] : weights.entries()) expected_names.push_back(name);
  for (const auto& [name, tensor] : model.named_tensors()) {
    names.push_back(name);
    EXPECT_TRUE(torch::equal(tensor, weights.get_tensor(name))) << name;
  }
  EXPECT_EQ(names, expected_names);

  // A network with different weights loads torchvision's weights and then computes torchvision's
  // scores.
  torch::manual_seed(4);
  const ResNet other(depth, ResNetOptions{.num_classes = 10});
  Model loaded(other);
  loaded.load_state_dict(weights);
  loaded.eval();
  const at::NoGradGuard no_grad;
  const at::Tensor scores = loaded(expected.get_tensor("images"));
  EXPECT_TRUE(torch::equal(scores, expected.get_tensor("scores")))
      << (scores - expected.get_tensor("scores")).abs().max();
}

INSTANTIATE_TEST_SUITE_P(Depths, VisionResNetParityTest,
                         ::testing::Values(ResNetCase{18, false}, ResNetCase{18, true},
                                           ResNetCase{34, false}, ResNetCase{34, true},
                                           ResNetCase{50, false}, ResNetCase{50, true}),
                         [](const auto& info) {
                           return c10::str("ResNet", info.param.depth,
                                           info.param.zero_init_residual ? "ZeroInit" : "");
                         });

}  // namespace
}  // namespace linkboy::vision::vision_parity_test
