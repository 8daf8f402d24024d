// Compares the Trainer's losses with those of Python's PyTorch: close to the stored golden losses,
// and bit-identical to those that Python computes on the same machine.
//
// Golden files: python tests/parity/python_peer.py --golden tests/parity/golden

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <fstream>
#include <nlohmann/json.hpp>

#include "linkboy/schedulers/cosine_scheduler.hpp"
#include "support/python_peer.hpp"
#include "support/toy.hpp"

namespace linkboy::testing::python_parity_test {
namespace {

const std::filesystem::path kFolder = std::filesystem::path(__FILE__).parent_path();
constexpr int64_t kSamples = 52;

torch::Tensor sequence(int64_t count, int64_t start) {
  const auto index = torch::arange(start, start + count, torch::kLong);
  return ((index * 40503 + 12345).remainder(65536) - 32768).to(torch::kFloat) / 32768;
}

torch::nn::Sequential make_model(const std::string& name) {
  using namespace torch::nn;
  Sequential model =
      name == "mlp"
          ? Sequential(Flatten(), Linear(64, 32), ReLU(), Linear(32, 16), ReLU(), Linear(16, 10))
          : Sequential(Conv2d(Conv2dOptions(1, 4, 3).padding(1)), BatchNorm2d(4), ReLU(),
                       MaxPool2d(2), Conv2d(Conv2dOptions(4, 8, 3).padding(1)), BatchNorm2d(8),
                       ReLU(), MaxPool2d(2), Flatten(), Linear(32, 10));
  const torch::NoGradGuard no_grad;
  int64_t start = 0;
  for (auto& parameter : model->parameters()) {
    const auto values = sequence(parameter.numel(), start).reshape(parameter.sizes());
    parameter.copy_(parameter.dim() > 1 ? values * 0.25 : values * 0.125 + 0.5);
    start += parameter.numel();
  }
  return model;
}

struct Outcome {
  std::vector<double> losses;
  std::vector<double> sums;
};

/// @param name Model, optimizer, accumulation steps and variant, such as "mlp-adamw-4-cosine".
Outcome train(const std::string& name) {
  class KeepLosses : public Callback {
   public:
    void on_train_step_end(Trainer&, const Batch&, const StepOutput& output) override {
      losses.push_back(output.loss.item<double>());
    }
    std::vector<double> losses;
  };
  auto has = [&](const char* part) { return name.find(part) != std::string::npos; };
  auto model = make_model(name.substr(0, 3));
  std::shared_ptr<torch::optim::Optimizer> optimizer;
  if (has("adamw")) {
    optimizer = std::make_shared<torch::optim::AdamW>(model->parameters(), 3e-3);
  } else {
    optimizer = std::make_shared<torch::optim::SGD>(
        model->parameters(), torch::optim::SGDOptions(0.05).momentum(0.9).weight_decay(1e-4));
  }
  auto keep = std::make_shared<KeepLosses>();
  QuietTrainer trainer(model, torch::nn::CrossEntropyLoss(), optimizer,
                       {.callbacks = {keep}, .accelerator = {.device = "cpu"}});
  TrainOptions options{
      .train_dataset = TensorDataset(sequence(kSamples * 64, 7).reshape({kSamples, 1, 8, 8}),
                                     torch::arange(kSamples) * 7 % 10),
      .num_epochs = 2,
      .per_device_batch_size = 4,
      .gradient_accumulation_steps = has("-4-") ? 4 : 1};
  options.train_dataloader_options.shuffle = false;
  if (has("clip_value")) options.gradient_clip_value = 0.01;
  if (has("clip_norm")) options.gradient_clip_norm = 0.1;
  if (has("cosine")) options.create_scheduler_fn = cosine();
  trainer.train(options);
  Outcome outcome{keep->losses, {}};
  for (const auto& [tensor_name, tensor] : Model(model).named_tensors()) {
    outcome.sums.push_back(tensor.to(torch::kDouble).sum().item<double>());
  }
  return outcome;
}

TEST(GoldenParityTest, LossesEqualTheGoldenLossesOfPython) {
  const SingleThread single_thread;
  int cases = 0;
  for (const auto& file : std::filesystem::directory_iterator(kFolder / "golden")) {
    std::ifstream stream(file.path());
    const auto golden = nlohmann::json::parse(stream);
    const std::string name = file.path().stem().string();
    SCOPED_TRACE(name + ", written by torch " + golden["torch"].get<std::string>());
    const Outcome ours = train(name);
    const auto losses = golden["losses"].get<std::vector<double>>();
    ASSERT_EQ(ours.losses.size(), losses.size());
    // Sums differ in the last bits between processors, and training amplifies the differences.
    for (std::size_t i = 0; i < losses.size(); ++i) {
      EXPECT_NEAR(ours.losses[i], losses[i], 1e-4 * losses[i]) << "step " << i;
    }
    ++cases;
  }
  EXPECT_EQ(cases, 32);
}

TEST(PythonParityTest, LossesAndWeightsAreBitIdenticalToPython) {
  SKIP_WITHOUT_PYTHON();
  const std::string text = run_python("python_peer.py", {"all"});
  ASSERT_FALSE(HasFailure());
  const SingleThread single_thread;
  const auto theirs = nlohmann::json::parse(text);
  ASSERT_EQ(theirs.size(), 32U);
  for (const auto& [name, python_outcome] : theirs.items()) {
    SCOPED_TRACE(name);
    const Outcome ours = train(name);
    EXPECT_EQ(ours.losses, python_outcome["losses"].get<std::vector<double>>());
    EXPECT_EQ(ours.sums, python_outcome["sums"].get<std::vector<double>>());
  }
}

}  // namespace
}  // namespace linkboy::testing::python_parity_test
