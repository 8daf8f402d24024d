#include "models.hpp"

#include <gtest/gtest.h>
#include <torch/types.h>
#include <torch/utils.h>

#include <map>
#include <string>
#include <vector>

#include "support/expect_error.hpp"
#include "support/python_peer.hpp"

namespace fashion_mnist::fashion_mnist_models_test {
namespace {

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

TEST(MakeModelTest, HasTheExpectedNumberOfParameters) {
  for (const auto& [name, expected] :
       std::map<std::string, int64_t>{{"mlp", 109386}, {"cnn", 207018}, {"resnet18", 11172810}}) {
    int64_t count = 0;
    for (const auto& parameter : make_model(name).parameters()) count += parameter.numel();
    EXPECT_EQ(count, expected) << name;
  }
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
      const auto weight = model.state_dict().get_tensor(name).to(torch::kDouble);
      EXPECT_EQ(weight.abs().sum().item<double>(), sum.get<double>()) << name;
    }
  }
}

TEST(MakeModelTest, RefusesUnknownNames) {
  EXPECT_ERROR(make_model("vgg"), "there is no model 'vgg'");
}

}  // namespace
}  // namespace fashion_mnist::fashion_mnist_models_test
