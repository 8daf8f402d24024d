// Trains a small network to classify points on two spirals.

#include <torch/torch.h>

#include <cstdio>
#include <numbers>

#include <linkboy/metrics/classification.hpp>
#include <linkboy/trainer.hpp>

/// Returns points [N, 2] on two interleaved spirals, and labels [N] with the spiral of each point.
linkboy::TensorDataset make_spirals(int64_t num_points) {
  const auto labels = torch::randint(2, {num_points}, torch::kLong);
  const auto radii = torch::rand(num_points);
  const auto angles = 8.0 * radii + std::numbers::pi * labels;
  return {torch::stack({radii * angles.cos(), radii * angles.sin()}, 1), labels};
}

int main() {
  torch::manual_seed(0);
  torch::nn::Sequential net(torch::nn::Linear(2, 64), torch::nn::ReLU(), torch::nn::Linear(64, 64),
                            torch::nn::ReLU(), torch::nn::Linear(64, 2));
  auto optimizer = std::make_shared<torch::optim::AdamW>(net->parameters(), 0.01);

  linkboy::Trainer trainer(net, torch::nn::CrossEntropyLoss(), optimizer,
                           {.metrics = {{"accuracy", linkboy::accuracy({.num_classes = 2})}}});
  trainer.train({.train_dataset = make_spirals(2000),
                 .eval_dataset = make_spirals(500),
                 .per_device_batch_size = 50,
                 .num_epochs = 10});
  const auto result = trainer.evaluate({.dataset = make_spirals(1000)});
  std::printf("accuracy: %.3f\n", result.at("eval_accuracy"));
}
