// hand_written_loop.cpp, rewritten with linkboy's Trainer: the result of the tutorial "ten steps".

#include <torch/torch.h>

#include <cstdio>
#include <numbers>

#include <linkboy/callbacks/save_training_state.hpp>
#include <linkboy/callbacks/stop_on_signal.hpp>
#include <linkboy/cli.hpp>
#include <linkboy/metrics/classification.hpp>
#include <linkboy/trainer.hpp>

/// Returns points [N, 2] on two interleaved spirals, and labels [N] with the spiral of each point.
linkboy::TensorDataset make_spirals(int64_t num_points) {
  const auto labels = torch::randint(2, {num_points}, torch::kLong);
  const auto radii = torch::rand(num_points);
  const auto angles = 8.0 * radii + std::numbers::pi * labels;
  return {torch::stack({radii * angles.cos(), radii * angles.sin()}, 1), labels};
}

void run() {
  torch::manual_seed(0);
  const auto train = make_spirals(2000);
  const auto test = make_spirals(500);
  torch::nn::Sequential net;
  net->push_back(torch::nn::Linear(2, 64));
  net->push_back(torch::nn::ReLU());
  net->push_back(torch::nn::Linear(64, 64));
  net->push_back(torch::nn::ReLU());
  net->push_back(torch::nn::Linear(64, 2));
  auto optimizer = std::make_shared<torch::optim::AdamW>(net->parameters(), 0.01);

  auto states = linkboy::save_training_state({.directory = "states"});
  auto stop = linkboy::stop_on_signal();

  linkboy::Trainer trainer(net, torch::nn::CrossEntropyLoss(), optimizer,
                           {.metrics = {{"accuracy", linkboy::accuracy({.num_classes = 2})}},
                            .callbacks = {states, stop},
                            .default_callbacks = {}});
  trainer.train({.train_dataset = train,
                 .eval_dataset = test,
                 .per_device_batch_size = 50,
                 .train_dataloader_options = {.shuffle = false},
                 .num_epochs = 10,
                 .resume_from = "states/latest"});

  const auto losses = trainer.run_history().get_metric_values("train_loss_epoch");
  for (std::size_t i = 0; i < losses.size(); ++i) {
    std::printf("epoch %zu: training loss %.2f\n", i + 1, losses[i]);
  }
  const auto result = trainer.evaluate({.dataset = test});
  std::printf("accuracy: %.2f\n", result.at("eval_accuracy"));
  trainer.save_checkpoint("spirals.pt");
}

int main(int argc, char** argv) {
  return linkboy::cli::run_main(argc, argv, [](const linkboy::cli::Arguments&) { run(); });
}
