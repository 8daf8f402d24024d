#include "models.hpp"

#include <gtest/gtest.h>
#include <torch/types.h>
#include <torch/utils.h>

#include <cmath>
#include <string>
#include <vector>

#include "support/expect_error.hpp"
#include "support/python_peer.hpp"

namespace fashion_mnist::fashion_mnist_models_test {
namespace {

std::vector<std::string> names(const linkboy::Model& model) {
  std::vector<std::string> result;
  for (const auto& [name, tensor] : model.named_tensors()) result.push_back(name);
  return result;
}

int64_t num_parameters(const linkboy::Model& model) {
  int64_t count = 0;
  for (const auto& parameter : model.parameters()) count += parameter.numel();
  return count;
}

at::Tensor tensor(const linkboy::Model& model, const std::string& name) {
  return model.state_dict().get_tensor(name);
}

class ModelsTest : public ::testing::TestWithParam<const char*> {};
INSTANTIATE_TEST_SUITE_P(All, ModelsTest, ::testing::Values("mlp", "cnn", "resnet18"));

TEST_P(ModelsTest, MapImagesToScores) {
  linkboy::Model model = make_model(GetParam());
  EXPECT_EQ(model(torch::randn({3, 1, 28, 28})).sizes(), (std::vector<int64_t>{3, 10}));
}

TEST_P(ModelsTest, TrainAllTheirParameters) {
  linkboy::Model model = make_model(GetParam());
  model(torch::randn({3, 1, 28, 28})).square().sum().backward();
  for (const auto& parameter : model.parameters()) {
    EXPECT_GT(parameter.grad().abs().sum().item<float>(), 0);
  }
}

TEST(MlpTest, NamesItsLayersLikePython) {
  const linkboy::Model model = make_model("mlp");
  EXPECT_EQ(names(model), (std::vector<std::string>{"0.weight", "0.bias", "2.weight", "2.bias",
                                                    "4.weight", "4.bias"}));
  EXPECT_EQ(num_parameters(model), 109386);
}

TEST(CnnTest, NamesItsLayersLikePython) {
  const linkboy::Model model = make_model("cnn");
  EXPECT_EQ(
      names(model),
      (std::vector<std::string>{
          "0.weight", "0.bias", "1.weight", "1.bias", "1.running_mean", "1.running_var",
          "1.num_batches_tracked", "4.weight", "4.bias", "5.weight", "5.bias", "5.running_mean",
          "5.running_var", "5.num_batches_tracked", "9.weight", "9.bias", "11.weight", "11.bias"}));
  EXPECT_EQ(num_parameters(model), 207018);
}

TEST(ResNet18Test, HasTorchvisionsNames) {
  const linkboy::Model model = make_model("resnet18");
  const auto all = names(model);
  ASSERT_EQ(all.size(), 122U);
  EXPECT_EQ(all[0], "conv1.weight");
  EXPECT_EQ(all[1], "bn1.weight");
  EXPECT_EQ(all[6], "layer1.0.conv1.weight");
  EXPECT_EQ(all[120], "fc.weight");
  const std::vector<std::string> downsample(all.begin() + 42, all.begin() + 44);
  EXPECT_EQ(downsample, (std::vector<std::string>{"layer2.0.downsample.0.weight",
                                                  "layer2.0.downsample.1.weight"}));
  EXPECT_EQ(tensor(model, "conv1.weight").sizes(), (std::vector<int64_t>{64, 1, 3, 3}));
  EXPECT_EQ(tensor(model, "layer4.0.downsample.0.weight").sizes(),
            (std::vector<int64_t>{512, 256, 1, 1}));
  EXPECT_EQ(num_parameters(model), 11172810);
}

TEST(ResNet18Test, StartsLikeTorchvision) {
  torch::manual_seed(0);
  const linkboy::Model model = make_model("resnet18");
  // Kaiming initialisation with fan-out and ReLU has the standard deviation sqrt(2 / (output
  // channels * kernel area)).
  EXPECT_NEAR(tensor(model, "layer3.1.conv2.weight").std().item<double>(),
              std::sqrt(2.0 / (256 * 9)), 1e-4);
  EXPECT_NEAR(tensor(model, "layer2.0.downsample.0.weight").std().item<double>(),
              std::sqrt(2.0 / 128), 3e-3);
  EXPECT_TRUE(torch::equal(tensor(model, "bn1.weight"), torch::ones({64})));
  EXPECT_TRUE(torch::equal(tensor(model, "layer1.0.bn2.bias"), torch::zeros({64})));
}

double absolute_sum(const linkboy::Model& model, const std::string& name) {
  return tensor(model, name).to(torch::kDouble).abs().sum().item<double>();
}

// Python computes the expected sums at run time, because the random numbers depend on the
// processor's vector instructions.
TEST(MakeModelTest, ASeedGivesTheSameWeightsAsPython) {
  SKIP_WITHOUT_PYTHON();
  const auto expected = nlohmann::json::parse(linkboy::run_python("fashion_mnist_weights.py", {}));
  ASSERT_EQ(expected.size(), 3U);
  for (const auto& [model_name, sums] : expected.items()) {
    SCOPED_TRACE(model_name);
    torch::manual_seed(0);
    const linkboy::Model model = make_model(model_name);
    ASSERT_FALSE(sums.empty());
    for (const auto& [name, sum] : sums.items()) {
      EXPECT_EQ(absolute_sum(model, name), sum.get<double>()) << name;
    }
  }
}

TEST(MakeModelTest, RefusesUnknownNames) {
  EXPECT_ERROR(make_model("vgg"), "there is no model 'vgg'");
}

}  // namespace
}  // namespace fashion_mnist::fashion_mnist_models_test
