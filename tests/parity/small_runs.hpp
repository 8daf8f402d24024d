#pragma once

#include <torch/torch.h>

#include <memory>
#include <string>
#include <vector>

#include "linkboy/schedulers/curves.hpp"
#include "support/keep_losses.hpp"
#include "support/toy.hpp"

namespace linkboy::testing::parity {

/// Returns multiples of 2**-15 in [-1, 1), as python_peer.py does.
inline torch::Tensor sequence(int64_t count, int64_t start) {
  const auto index = torch::arange(start, start + count, torch::kLong);
  return ((index * 40503 + 12345).remainder(65536) - 32768).to(torch::kFloat) / 32768;
}

struct Outcome {
  std::vector<float> losses;           // of all micro-steps
  std::vector<torch::Tensor> tensors;  // the final parameters and buffers

  std::vector<double> sums() const {
    std::vector<double> result;
    for (const auto& tensor : tensors) {
      result.push_back(tensor.to(torch::kDouble).sum().item<double>());
    }
    return result;
  }
};

inline std::vector<torch::Tensor> tensors_of(const Model& model) {
  std::vector<torch::Tensor> tensors;
  for (const auto& [name, tensor] : model.named_tensors()) tensors.push_back(tensor);
  return tensors;
}

/// A case of python_peer.py. Its name has the model, the optimizer, the accumulation steps and a
/// variant: "mlp-adamw-4-cosine".
struct SmallRun {
  static constexpr int64_t kSamples = 52;
  static constexpr int64_t kBatchSize = 4;  // 13 batches: windows of 4, and a last one of 1
  static constexpr int64_t kEpochs = 2;

  bool has(const char* part) const { return name.find(part) != std::string::npos; }
  int64_t accumulation() const { return has("-4-") ? 4 : 1; }
  double lr() const { return has("adamw") ? 3e-3 : 0.05; }

  torch::nn::Sequential make_model() const {
    using namespace torch::nn;
    Sequential model =
        has("mlp")
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

  std::shared_ptr<torch::optim::Optimizer> make_optimizer(
      const torch::nn::Sequential& model) const {
    if (has("adamw")) return std::make_shared<torch::optim::AdamW>(model->parameters(), lr());
    return std::make_shared<torch::optim::SGD>(
        model->parameters(), torch::optim::SGDOptions(lr()).momentum(0.9).weight_decay(1e-4));
  }

  static torch::Tensor inputs() { return sequence(kSamples * 64, 7).reshape({kSamples, 1, 8, 8}); }
  static torch::Tensor labels() { return torch::arange(kSamples) * 7 % 10; }

  Outcome train(bool has_default_callbacks = false) const {
    auto model = make_model();
    auto keep = std::make_shared<KeepLosses>();
    QuietTrainer trainer(
        model, torch::nn::CrossEntropyLoss(), make_optimizer(model),
        {.callbacks = {keep},
         .default_callbacks = has_default_callbacks ? default_callbacks() : CallbackList{},
         .accelerator = {.device = "cpu"}});
    TrainOptions options{.train_dataset = TensorDataset(inputs(), labels()),
                         .per_device_batch_size = kBatchSize,
                         .num_epochs = kEpochs,
                         .gradient_accumulation_steps = accumulation()};
    options.train_dataloader_options.shuffle = false;
    if (has("clip_value")) options.gradient_clip_value = 0.01;
    if (has("clip_norm")) options.gradient_clip_norm = 0.1;
    if (has("cosine")) options.create_scheduler_fn = cosine();
    trainer.train(options);
    return {keep->losses, tensors_of(model)};
  }

  std::string name;
};

}  // namespace linkboy::testing::parity
