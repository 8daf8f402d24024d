#include "linkboy/vision/resnet.hpp"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <map>
#include <string>
#include <vector>

#include "linkboy/model.hpp"
#include "support/expect_error.hpp"

namespace linkboy::vision::resnet_test {
namespace {

/// Returns the names in torchvision's state dict, in order.
std::vector<std::string> torchvision_names(const std::vector<int>& layer_sizes, int num_convs) {
  std::vector<std::string> names;
  const auto add_pair = [&](const std::string& conv, const std::string& norm) {
    names.push_back(conv + ".weight");
    for (const char* name : {"weight", "bias", "running_mean", "running_var"}) {
      names.push_back(norm + "." + name);
    }
    names.push_back(norm + ".num_batches_tracked");
  };
  add_pair("conv1", "bn1");
  for (std::size_t layer = 0; layer < layer_sizes.size(); ++layer) {
    for (int block = 0; block < layer_sizes[layer]; ++block) {
      const std::string prefix = c10::str("layer", layer + 1, ".", block, ".");
      for (int conv = 1; conv <= num_convs; ++conv) {
        add_pair(c10::str(prefix, "conv", conv), c10::str(prefix, "bn", conv));
      }
      if (block == 0 && (layer > 0 || num_convs == 3)) {
        add_pair(prefix + "downsample.0", prefix + "downsample.1");
      }
    }
  }
  names.insert(names.end(), {"fc.weight", "fc.bias"});
  return names;
}

struct ResNetSizes {
  int64_t depth;
  std::vector<int> layers;
  int num_convs;  // per block
  std::size_t num_parameters;
  std::size_t num_tensors;
  int64_t num_elements;  // in all parameters, with 1000 classes
};

struct ResNetTest : ::testing::TestWithParam<ResNetSizes> {};

TEST_P(ResNetTest, HasTorchvisionsNamesAndSizes) {
  const ResNet model(GetParam().depth);
  EXPECT_EQ(model->parameters().size(), GetParam().num_parameters);
  int64_t num_elements = 0;
  for (const auto& parameter : model->parameters()) num_elements += parameter.numel();
  EXPECT_EQ(num_elements, GetParam().num_elements);

  std::vector<std::string> names;
  for (const auto& [name, tensor] : Model(model).named_tensors()) names.push_back(name);
  EXPECT_EQ(names.size(), GetParam().num_tensors);
  EXPECT_EQ(names, torchvision_names(GetParam().layers, GetParam().num_convs));
}

INSTANTIATE_TEST_SUITE_P(Depths, ResNetTest,
                         ::testing::Values(ResNetSizes{18, {2, 2, 2, 2}, 2, 62, 122, 11'689'512},
                                           ResNetSizes{34, {3, 4, 6, 3}, 2, 110, 218, 21'797'672},
                                           ResNetSizes{50, {3, 4, 6, 3}, 3, 161, 320, 25'557'032}),
                         [](const auto& info) { return c10::str("ResNet", info.param.depth); });

// The numbers come from tests/parity/torchvision_resnet_golden.py with torch 2.11.0 and torchvision
// 0.26.0. LibTorch draws normal random numbers with vector instructions if the processor has them,
// and their logarithm rounds differently. Without them, the sums change by 1e-8 of their values. A
// different order of drawing would change them by 1e-3.
TEST(ResNetGoldenTest, EqualsTorchvisionsWeightsAndScoresForTheSameSeed) {
  const at::NoGradGuard no_grad;
  torch::manual_seed(3);
  ResNet model = resnet34({.num_classes = 10});
  const auto parameters = model->named_parameters();
  for (const auto& [name, sum] :
       std::map<std::string, double>{{"conv1.weight", 191.5353463634275},
                                     {"layer2.0.downsample.0.weight", 817.679667415432},
                                     {"layer4.1.conv2.weight", 39206.437526859154},
                                     {"fc.weight", 113.94636533144148}}) {
    const auto found = parameters[name].to(torch::kDouble).abs().sum().item<double>();
    EXPECT_NEAR(found, sum, 1e-7 * sum) << name;
  }

  model->eval();
  const at::Tensor scores =
      model->forward(torch::linspace(-1, 1, 3 * 32 * 32).reshape({1, 3, 32, 32}));
  const std::vector<double> expected{
      0.11391041427850723,  -0.6427422165870667, 0.702272355556488,  0.1640002280473709,
      0.1638948917388916,   -0.6120059490203857, 0.5769026875495911, 0.026336029171943665,
      -0.12177729606628418, -0.17467685043811798};
  ASSERT_EQ(scores.sizes(), (std::vector<int64_t>{1, 10}));
  for (std::size_t i = 0; i < expected.size(); ++i) {
    EXPECT_NEAR(scores[0][static_cast<int64_t>(i)].item<double>(), expected[i], 1e-4) << i;
  }
}

TEST(ResNetTest, FunctionsMakeNetworksOfTheirDepth) {
  EXPECT_EQ(resnet18()->parameters().size(), 62);
  EXPECT_EQ(resnet34({.num_classes = 3})->parameters().size(), 110);
  EXPECT_EQ(resnet50()->parameters().size(), 161);
}

TEST(ResNetTest, TheSmallStemReducesTheSidesToAnEighth) {
  const at::NoGradGuard no_grad;
  for (const int64_t depth : {18, 50}) {
    ResNet model(depth, ResNetOptions{.num_classes = 7, .in_channels = 1, .has_small_stem = true});
    EXPECT_EQ(model->named_parameters()["conv1.weight"].sizes(),
              (std::vector<int64_t>{64, 1, 3, 3}));
    EXPECT_EQ(model->forward(torch::rand({2, 1, 16, 16})).sizes(), (std::vector<int64_t>{2, 7}));
  }
}

TEST(ResNetTest, BlocksInitialisedAsTheIdentityReturnTheirInput) {
  const at::NoGradGuard no_grad;
  ResNet model = resnet50({.num_classes = 2, .zero_init_residual = true});
  const auto parameters = model->named_parameters();
  EXPECT_EQ(parameters["layer3.1.bn3.weight"].abs().sum().item<double>(), 0.0);
  EXPECT_EQ(parameters["layer3.1.bn2.weight"].min().item<double>(), 1.0);
  EXPECT_EQ(parameters["layer1.0.downsample.1.weight"].min().item<double>(), 1.0);
}

TEST(ResNetTest, RefusesInvalidDepthsClassesAndChannels) {
  EXPECT_OPTION_ERROR(ResNet(101), "the depth of a ResNet is 101; it must be 18, 34 or 50");
  EXPECT_ERROR(resnet18({.num_classes = 0}), "a ResNet's num_classes is 0; it must be at least 1");
  EXPECT_ERROR(resnet50({.in_channels = 0}), "a ResNet's in_channels is 0; it must be at least 1");
}

}  // namespace
}  // namespace linkboy::vision::resnet_test
