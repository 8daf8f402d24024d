// The models of the examples, compiled: 30 updates have the losses of eager steps.

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "compile/compiled_run.hpp"
#include "linkboy/vision/resnet.hpp"
#include "model.hpp"
#include "models.hpp"

namespace linkboy::testing::compiled_models_test {
namespace {

constexpr int64_t kBatch = 16;

TensorDataset random_images(int64_t channels, int64_t side, torch::Dtype dtype) {
  return TensorDataset(torch::randn({6 * kBatch, channels, side, side}, dtype),
                       torch::randint(10, {6 * kBatch}));
}

/// Expects the losses of eager steps in 30 updates.
template <class Optimizer = torch::optim::AdamW, class MakeModel>
void expect_losses_of_eager(const MakeModel& make_model, const LossFunction& loss,
                            const TensorDataset& data, double tolerance) {
  std::vector<float> losses[2];
  for (const auto mode : {ExecutionMode::eager, ExecutionMode::compiled}) {
    torch::manual_seed(0);
    Model model = make_model();
    CompiledRun run(model, loss, std::make_shared<Optimizer>(model.parameters(), 1e-3));
    run.train(mode, {.train_dataset = data, .per_device_batch_size = kBatch, .num_epochs = 5});
    losses[mode == ExecutionMode::compiled] = run.losses();
    // Compiling calls it four times, and then the second micro-step and each epoch once.
    EXPECT_EQ(run.num_calls, mode == ExecutionMode::eager ? 30 : 4 + 5);
  }
  EXPECT_EQ(losses[0].size(), 30U);
  EXPECT_LE(largest_difference(losses[1], losses[0]), tolerance);
}

TEST(CompiledModelsTest, AnMlpHasTheLossesOfEagerSteps) {
  expect_losses_of_eager([] { return fashion_mnist::make_model("mlp"); },
                         torch::nn::CrossEntropyLoss(), random_images(1, 28, torch::kFloat), 1e-6);
}

// With AdamW, the losses differ by 2e-5: it amplifies the rounding errors that are the gradients of
// biases before a batch norm.
TEST(CompiledModelsTest, ACnnHasTheLossesOfEagerSteps) {
  expect_losses_of_eager<torch::optim::SGD>([] { return fashion_mnist::make_model("cnn"); },
                                            torch::nn::CrossEntropyLoss(),
                                            random_images(1, 28, torch::kFloat), 1e-6);
}

TEST(CompiledModelsTest, ATransformerHasTheLossesOfEagerSteps) {
  const auto loss = [](const at::Tensor& logits, const at::Tensor& targets) {
    return torch::cross_entropy_loss(logits.flatten(0, 1), targets.flatten());
  };
  const TensorDataset data(torch::randint(256, {6 * kBatch, 32}),
                           torch::randint(256, {6 * kBatch, 32}));
  expect_losses_of_eager(
      [] {
        return Model(byte_gpt::Gpt(byte_gpt::GptOptions{.length = 32, .layers = 2, .width = 64}));
      },
      loss, data, 1e-6);
}

TEST(CompiledModelsTest, AResNetInDoubleHasTheLossesOfEagerStepsToElevenDigits) {
  expect_losses_of_eager(
      [] {
        auto model = vision::resnet18({.num_classes = 10, .has_small_stem = true});
        model->to(torch::kDouble);
        return Model(model);
      },
      torch::nn::CrossEntropyLoss(), random_images(3, 8, torch::kDouble), 1e-11);
}

}  // namespace
}  // namespace linkboy::testing::compiled_models_test
