// Accumulates the gradients of four batches of 16. The updates equal those of one batch of 64 up to
// rounding, and the activations need a quarter of the memory.

#include <torch/torch.h>

#include <algorithm>
#include <cstdio>

#include <linkboy/trainer.hpp>

/// Returns points [N, 8] and a linear function of them with noise, [N, 1].
linkboy::TensorDataset make_data(int64_t num_points) {
  const auto points = torch::randn({num_points, 8});
  return {points, points.sum(1, /*keepdim=*/true) + torch::randn({num_points, 1})};
}

/// Returns the weights after training. Only the two arguments differ between calls.
std::vector<at::Tensor> train(int64_t batch_size, int64_t accumulation_steps) {
  torch::manual_seed(0);  // the data, the weights, and the order of the samples
  torch::nn::Sequential model(torch::nn::Linear(8, 32), torch::nn::Tanh(),
                              torch::nn::Linear(32, 1));
  auto optimizer = std::make_shared<torch::optim::SGD>(
      model->parameters(), torch::optim::SGDOptions(0.01).momentum(0.9));
  linkboy::Trainer trainer(model, torch::nn::MSELoss(), optimizer);
  // 1024 is a multiple of 64, so the last update has as many samples as the others.
  trainer.train({.train_dataset = make_data(1024),
                 .per_device_batch_size = batch_size,
                 .num_epochs = 2,
                 .gradient_accumulation_steps = accumulation_steps});
  return model->parameters();
}

int main() {
  const auto at_once = train(/*batch_size=*/64, /*accumulation_steps=*/1);
  const auto accumulated = train(/*batch_size=*/16, /*accumulation_steps=*/4);

  double difference = 0.0;
  for (std::size_t i = 0; i < at_once.size(); ++i) {
    difference = std::max(difference, (at_once[i] - accumulated[i]).abs().max().item<double>());
  }
  // The difference is not zero, because floating-point sums depend on the order of the terms.
  std::printf("largest difference between the weights: %.0e\n", difference);
}
