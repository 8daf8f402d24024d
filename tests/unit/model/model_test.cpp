#include "linkboy/model.hpp"

#include <gtest/gtest.h>
#include <torch/script.h>
#include <torch/torch.h>

#include "support/expect_error.hpp"
#include "support/toy.hpp"

namespace linkboy::testing::model_test {
namespace {

struct TwoInputs : torch::nn::Module {
  TwoInputs() { linear = register_module("linear", torch::nn::Linear(2, 1)); }
  torch::Tensor forward(const torch::Tensor& a, const torch::Tensor& b) { return linear(a + b); }
  torch::nn::Linear linear{nullptr};
};

struct EightInputs : torch::nn::Module {
  torch::Tensor forward(const torch::Tensor& a, const torch::Tensor& b, const torch::Tensor& c,
                        const torch::Tensor& d, const torch::Tensor& e, const torch::Tensor& f,
                        const torch::Tensor& g, const torch::Tensor& h) {
    return a + b + c + d + e + f + g + h;
  }
};

struct OptionalMask : torch::nn::Module {
  torch::Tensor forward(torch::Tensor a, torch::Tensor mask = {}) {
    return mask.defined() ? a * mask : a;
  }
};

struct Pair : torch::nn::Module {
  std::tuple<torch::Tensor, torch::Tensor> forward(torch::Tensor a) { return {a, a + 1}; }
};

struct NoForward : torch::nn::Module {};

struct OddOutput : torch::nn::Module {
  struct Result {
    torch::Tensor scores;
  };
  Result forward(torch::Tensor a) { return {a}; }
};

std::vector<std::string> names_of(const Model& model) {
  std::vector<std::string> names;
  for (const auto& [name, tensor] : model.named_tensors()) names.push_back(name);
  return names;
}

TEST(ModelTest, AcceptsEveryKindOfModule) {
  const auto x = torch::ones({3, 2});
  torch::nn::Linear linear(2, 4);
  EXPECT_TRUE(torch::equal(Model(linear)(x), linear->forward(x)));
  EXPECT_TRUE(torch::equal(Model(linear.ptr())(x), linear->forward(x)));
  torch::nn::Sequential sequential(linear, torch::nn::ReLU());
  EXPECT_TRUE(torch::equal(Model(sequential)(x), sequential->forward(x)));
  EXPECT_TRUE(torch::equal(Model(sequential.ptr())(x), sequential->forward(x)));
  EXPECT_TRUE(torch::equal(Model(torch::nn::AnyModule(linear))(x), linear->forward(x)));
  auto two = std::make_shared<TwoInputs>();
  EXPECT_TRUE(torch::equal(Model(two)(x, x), two->forward(x, x)));
  Model eight(std::make_shared<EightInputs>());
  EXPECT_TRUE(torch::equal(eight(x, x, x, x, x, x, x, x), 8 * x));
}

TEST(ModelTest, AcceptsATorchScriptModule) {
  torch::jit::Module script("m");
  script.register_parameter("weight", torch::full({2}, 3.0F), /*is_buffer=*/false);
  script.register_buffer("offset", torch::ones({2}));
  script.register_attribute("training", c10::BoolType::get(), true);
  script.define("def forward(self, x):\n    return x * self.weight + self.offset\n");
  Model model(script);
  EXPECT_TRUE(torch::equal(model(torch::ones({2})), torch::full({2}, 4.0F)));
  EXPECT_EQ(model.parameters().size(), 1U);
  EXPECT_EQ(names_of(model), (std::vector<std::string>{"weight", "offset"}));
  model.eval();
  EXPECT_FALSE(model.is_training());
  EXPECT_EQ(model.module(), nullptr);
}

TEST(ModelTest, TrainsATorchScriptModule) {
  torch::jit::Module script("m");
  script.register_parameter("weight", torch::zeros({4, 3}).requires_grad_(), false);
  script.define("def forward(self, x):\n    return torch.mm(x, self.weight)\n");
  Model model(script);
  QuietTrainer trainer(model, torch::nn::CrossEntropyLoss(),
                       std::make_shared<torch::optim::AdamW>(model.parameters(), 0.05),
                       {.default_callbacks = {}, .accelerator = {.device = "cpu"}});
  trainer.train({.train_dataset = toy_data(32), .num_epochs = 10});
  const auto losses = trainer.run_history().get_metric_values("train_loss_epoch");
  EXPECT_LT(losses.back(), losses.front());
}

TEST(ModelTest, DefaultArgumentsMayBeLeftOut) {
  Model model(std::make_shared<OptionalMask>());
  const auto x = torch::ones({2});
  EXPECT_TRUE(torch::equal(model(x), x));
  EXPECT_TRUE(torch::equal(model(x, x * 2), x * 2));
}

TEST(ModelTest, ForwardMayReturnATuple) {
  Model model(std::make_shared<Pair>());
  const auto output = model.forward({torch::zeros({1})});
  EXPECT_TRUE(output.isTuple());
  EXPECT_ERROR(model(torch::zeros({1})), "the model returned a Tuple where one tensor is expected");
}

TEST(ModelTest, ErrorsNameTheArgumentsOfForward) {
  const auto x = torch::ones({2});
  EXPECT_ERROR(Model(std::make_shared<TwoInputs>())(x),
               "cannot be called with 1 tensor(s); it accepts 2");
  EXPECT_ERROR(Model(std::make_shared<OptionalMask>())(x, x, x), "it accepts 1, 2");
  EXPECT_ERROR(Model(std::make_shared<NoForward>())(x), "it does not accept any number of tensors");
  EXPECT_ERROR(Model(std::make_shared<OddOutput>())(x),
               "returns a type that linkboy does not support");
  EXPECT_ERROR(Model(std::shared_ptr<Pair>()), "the model is null");
}

TEST(ModelTest, NamesTensorsInLayerOrderLikePythonsStateDict) {
  torch::nn::Sequential model(torch::nn::Conv2d(1, 2, 3), torch::nn::BatchNorm2d(2),
                              torch::nn::Linear(2, 2));
  EXPECT_EQ(names_of(model), (std::vector<std::string>{
                                 "0.weight", "0.bias", "1.weight", "1.bias", "1.running_mean",
                                 "1.running_var", "1.num_batches_tracked", "2.weight", "2.bias"}));
}

TEST(ModelTest, OmitsParametersThatALayerDoesNotHave) {
  torch::nn::Sequential model(
      torch::nn::Linear(torch::nn::LinearOptions(2, 2).bias(false)),
      torch::nn::BatchNorm1d(torch::nn::BatchNorm1dOptions(2).track_running_stats(false)));
  EXPECT_EQ(names_of(model), (std::vector<std::string>{"0.weight", "1.weight", "1.bias"}));
}

TEST(ModelTest, LoadsAStateIntoTheSameTensors) {
  auto source = toy_model();
  auto target = toy_model();
  const auto parameter = target->parameters()[0];
  parameter.data().fill_(9);
  Model(target).load_state_dict(Model(source).state_dict());
  EXPECT_TRUE(torch::equal(parameter, source->parameters()[0]));
}

}  // namespace
}  // namespace linkboy::testing::model_test
