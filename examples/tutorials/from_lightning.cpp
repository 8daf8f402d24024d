// A LightningModule as a subclass of Trainer. See docs/coming_from/lightning_and_accelerate.md.

#include <torch/torch.h>

#include <cstdio>
#include <numbers>

#include <linkboy/callbacks/early_stopping.hpp>
#include <linkboy/callbacks/save_best_model.hpp>
#include <linkboy/cli.hpp>
#include <linkboy/metrics/classification.hpp>
#include <linkboy/schedulers/curves.hpp>
#include <linkboy/trainer.hpp>

/// Contains the steps of the LightningModule; the network remains a plain module.
class NoisyClassifier : public linkboy::Trainer {
 public:
  using Trainer::Trainer;

 protected:
  linkboy::StepOutput calculate_train_batch_loss(const linkboy::Batch& batch) override {
    const auto noisy = batch.input() + 0.01 * torch::randn_like(batch.input());
    const auto scores = model()(noisy);
    const auto loss = torch::cross_entropy_loss(scores, batch.target());
    return {.loss = loss, .model_outputs = scores, .batch_size = batch.size()};
  }
};

linkboy::TensorDataset make_spirals(int64_t num_points) {
  const auto labels = torch::randint(2, {num_points}, torch::kLong);
  const auto radii = torch::rand(num_points);
  const auto angles = 8.0 * radii + std::numbers::pi * labels;
  return {torch::stack({radii * angles.cos(), radii * angles.sin()}, 1), labels};
}

void run() {
  torch::manual_seed(0);
  torch::nn::Sequential net(torch::nn::Linear(2, 64), torch::nn::ReLU(), torch::nn::Linear(64, 64),
                            torch::nn::ReLU(), torch::nn::Linear(64, 2));
  auto optimizer = std::make_shared<torch::optim::AdamW>(net->parameters(), 0.01);
  auto stopping = linkboy::early_stopping({.patience = 5, .min_delta = 0.0});
  auto best = linkboy::save_best_model(
      {.path = "best.pt", .monitor = "eval_accuracy", .greater_is_better = true});

  NoisyClassifier trainer(net, torch::nn::CrossEntropyLoss(), optimizer,
                          {.metrics = {{"accuracy", linkboy::accuracy({.num_classes = 2})}},
                           .callbacks = {stopping, best},
                           .default_callbacks = {}});
  trainer.train({.train_dataset = make_spirals(2000),
                 .eval_dataset = make_spirals(500),
                 .per_device_batch_size = 50,
                 .num_epochs = 10,
                 .gradient_clip_norm = 1.0,
                 .create_scheduler_fn = linkboy::cosine()});
  const auto result = trainer.evaluate({.dataset = make_spirals(1000)});
  std::printf("test accuracy: %.2f\n", result.at("eval_accuracy"));
}

int main(int argc, char** argv) {
  return linkboy::cli::run_main(argc, argv, [](const linkboy::cli::Arguments&) { run(); });
}
