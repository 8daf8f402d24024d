#pragma once

#include <torch/torch.h>

#include <memory>
#include <vector>

#include "linkboy/schedulers/curves.hpp"
#include "support/at_update.hpp"
#include "support/toy.hpp"

namespace linkboy::testing {

/// Averages the weights, which is a state that a resumed run must restore, and stores the loss of
/// each micro-step.
class WeightAverage : public Callback {
 public:
  void on_train_step_end(Trainer&, const Batch&, const StepOutput& output) override {
    losses.push_back(output.loss.item<double>());
  }
  void on_train_update_end(Trainer& trainer) override {
    const torch::NoGradGuard no_grad;
    const auto weight = trainer.model().parameters().front();
    average_ = average_.defined() ? average_ * 0.9 + weight * 0.1 : weight.clone();
  }
  StateDict state_dict() const override {
    StateDict state;
    if (average_.defined()) state.set("average", average_);
    return state;
  }
  void load_state_dict(const StateDict& state) override { average_ = state.get_tensor("average"); }

  std::vector<double> losses;

 private:
  torch::Tensor average_;
};

/// Returns a model with batch norm and dropout. The initial weights are the same each time.
inline torch::nn::Sequential model_with_dropout() {
  torch::manual_seed(3);
  return torch::nn::Sequential(torch::nn::Linear(4, 8), torch::nn::BatchNorm1d(8),
                               torch::nn::Dropout(0.5), torch::nn::Linear(8, 3));
}

/// A run with every part that has a state: dropout, batch norm, shuffling, two workers,
/// accumulation and a cosine schedule.
struct Rehearsal {
  static constexpr int64_t kUpdates = 40;

  explicit Rehearsal(int64_t last_update, CallbackList more = {},
                     Precision precision = Precision::fp32) {
    CallbackList callbacks{stop_at(last_update), average};
    callbacks.insert(callbacks.end(), more.begin(), more.end());
    trainer = std::make_unique<QuietTrainer>(
        model, torch::nn::CrossEntropyLoss(),
        std::make_shared<torch::optim::AdamW>(model->parameters(),
                                              torch::optim::AdamWOptions(0.01)),
        TrainerOptions{.callbacks = callbacks,
                       .default_callbacks = {},
                       .accelerator = {.device = "cpu", .precision = precision}});
    options = {.train_dataset = toy_data(14),
               .eval_dataset = toy_data(6),
               .per_device_batch_size = 2,
               .num_epochs = kUpdates / 4,
               .gradient_accumulation_steps = 2,
               .create_scheduler_fn =
                   cosine({.warmup_updates = 0.5 * placeholders::num_updates_per_epoch})};
    options.train_dataloader_options.num_workers = 2;
  }

  torch::nn::Sequential model = model_with_dropout();
  std::shared_ptr<WeightAverage> average = std::make_shared<WeightAverage>();
  std::unique_ptr<QuietTrainer> trainer;
  TrainOptions options;
};

}  // namespace linkboy::testing
