// A training loop with LibTorch alone: the starting point of the tutorial "ten steps".

#include <torch/torch.h>

#include <cstdio>
#include <numbers>

/// Returns points [N, 2] on two interleaved spirals, and labels [N] with the spiral of each point.
std::pair<at::Tensor, at::Tensor> make_spirals(int64_t num_points) {
  const auto labels = torch::randint(2, {num_points}, torch::kLong);
  const auto radii = torch::rand(num_points);
  const auto angles = 8.0 * radii + std::numbers::pi * labels;
  return {torch::stack({radii * angles.cos(), radii * angles.sin()}, 1), labels};
}

int main() {
  torch::manual_seed(0);
  constexpr int64_t kNumSamples = 2000, kBatchSize = 50, kNumEpochs = 10;
  const auto [train_points, train_labels] = make_spirals(kNumSamples);
  const auto [test_points, test_labels] = make_spirals(500);
  torch::nn::Sequential net;
  net->push_back(torch::nn::Linear(2, 64));
  net->push_back(torch::nn::ReLU());
  net->push_back(torch::nn::Linear(64, 64));
  net->push_back(torch::nn::ReLU());
  net->push_back(torch::nn::Linear(64, 2));
  torch::nn::CrossEntropyLoss loss_function;
  torch::optim::AdamW optimizer(net->parameters(), 0.01);

  for (int64_t epoch = 1; epoch <= kNumEpochs; ++epoch) {
    net->train();
    double sum = 0.0;
    for (int64_t first = 0; first < kNumSamples; first += kBatchSize) {
      const auto points = train_points.slice(0, first, first + kBatchSize);
      const auto labels = train_labels.slice(0, first, first + kBatchSize);
      optimizer.zero_grad();
      const auto loss = loss_function(net->forward(points), labels);
      loss.backward();
      optimizer.step();
      sum += loss.item<double>() * kBatchSize;
    }
    std::printf("epoch %ld: training loss %.2f\n", epoch, sum / kNumSamples);
  }
  net->eval();
  const torch::NoGradGuard no_grad;
  const auto is_right = net->forward(test_points).argmax(1) == test_labels;
  std::printf("accuracy: %.2f\n", is_right.to(torch::kDouble).mean().item<double>());
}
