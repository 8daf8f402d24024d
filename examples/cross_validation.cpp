// k-fold cross-validation: each fold is the test set once, and the model trains on the others.

#include <torch/torch.h>

#include <cstdio>

#include <linkboy/trainer.hpp>

struct Fold {
  std::shared_ptr<linkboy::Subset> train;
  std::shared_ptr<linkboy::Subset> test;
};

/// Puts sample i into the test set of fold i modulo k. Shuffle the samples first if they are
/// sorted.
Fold make_fold(const linkboy::Dataset& data, int64_t fold, int64_t num_folds) {
  std::vector<int64_t> train;
  std::vector<int64_t> test;
  for (int64_t i = 0; i < data.size(); ++i) (i % num_folds == fold ? test : train).push_back(i);
  return {std::make_shared<linkboy::Subset>(data, train),
          std::make_shared<linkboy::Subset>(data, test)};
}

/// Returns the test loss of a fold. Creates a new model, optimizer and Trainer, so that no fold
/// influences another.
double test_loss(const Fold& fold) {
  torch::nn::Linear model(8, 1);
  auto optimizer = std::make_shared<torch::optim::SGD>(model->parameters(), 0.05);
  linkboy::Trainer trainer(model, torch::nn::MSELoss(), optimizer,
                           {.default_callbacks = linkboy::low_overhead_callbacks()});
  trainer.train({.train_dataset = fold.train, .per_device_batch_size = 16, .num_epochs = 5});
  return trainer.evaluate({.dataset = fold.test}).at("evaluation_loss");
}

int main() {
  constexpr int kNumFolds = 5;
  torch::manual_seed(0);
  const auto points = torch::randn({1000, 8});
  const auto noise = torch::randn({1000, 1});
  const linkboy::TensorDataset data(points, points.sum(1, /*keepdim=*/true) + noise);

  std::vector<double> losses;
  for (int fold = 0; fold < kNumFolds; ++fold) {
    losses.push_back(test_loss(make_fold(data, fold, kNumFolds)));
    std::printf("fold %d: test loss %.3f\n", fold + 1, losses.back());
  }
  const auto all = torch::tensor(losses);
  std::printf("test loss: mean %.3f, standard deviation %.3f\n", all.mean().item<double>(),
              all.std().item<double>());
}
