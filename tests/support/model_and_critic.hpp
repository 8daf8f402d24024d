// A model and its critic, each with its own optimizer.

#pragma once

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "linkboy/schedulers/curves.hpp"
#include "support/toy.hpp"

namespace linkboy::testing {

/// The critic learns to predict the targets from the model's outputs. The model learns to get high
/// scores from the critic.
class LinearPlayers : public QuietTrainer {
 public:
  LinearPlayers(const torch::nn::Sequential& model, torch::nn::Linear critic,
                std::shared_ptr<torch::optim::Optimizer> optimizer, TrainerOptions options)
      : QuietTrainer(model, nullptr, std::move(optimizer), std::move(options)),
        critic_(std::move(critic)) {}

  StepOutput loss_of(const Batch& batch) {
    const auto outputs = model()(batch.input());
    const auto critic_loss =
        (critic_(outputs.detach()).squeeze(1) - batch.target()).square().mean();
    for (auto& parameter : critic_->parameters()) parameter.requires_grad_(false);
    const auto player_loss = torch::softplus(-critic_(outputs)).mean() + outputs.square().mean();
    for (auto& parameter : critic_->parameters()) parameter.requires_grad_(true);
    return {.loss = critic_loss + player_loss,
            .model_outputs = outputs,
            .batch_size = batch.size(),
            .extras = {{"critic", critic_loss}, {"player", player_loss}}};
  }
  void step(const std::string& name) { step_optimizer(name); }

  /// Returns the number of steps of the critic in the update that follows this number of updates.
  std::function<int64_t(int64_t)> steps_in_update = [](int64_t) { return 1; };
  /// If true, `train_step` updates the critic between two backward passes.
  bool updates_critic_first = false;
  bool steps_without_due = false;

 protected:
  StepOutput calculate_train_batch_loss(const Batch& batch) override { return loss_of(batch); }
  void train_step(const Batch& batch) override {
    if (steps_without_due) step_optimizer("critic");
    if (!updates_critic_first) return QuietTrainer::train_step(batch);
    backward_step(forward(batch).extras.get_tensor("critic"));
    step_optimizer("critic");
    // Uses the updated critic.
    const StepOutput output = loss_of(batch);
    backward({.loss = output.extras.get_tensor("player"), .batch_size = batch.size()});
    update();
  }
  void optimizer_step() override {
    QuietTrainer::optimizer_step();
    if (updates_critic_first) return;
    for (int64_t i = 0; i < steps_in_update(num_updates()); ++i) step_optimizer("critic");
  }

 private:
  torch::nn::Linear critic_;
};

inline CreateSchedulerFn critic_schedule() { return step_decay({.step_size = 2, .gamma = 0.5}); }

struct Players {
  explicit Players(CreateSchedulerFn schedule = critic_schedule(), CallbackList callbacks = {},
                   AcceleratorOptions accelerator = {.device = test_device()},
                   const std::string& name = "critic") {
    const torch::NoGradGuard no_grad;
    critic->weight.copy_(torch::tensor({{0.3, -0.2, 0.5}}));
    critic->bias.fill_(0.1);
    trainer =
        std::make_unique<LinearPlayers>(model, critic, optimizer,
                                        TrainerOptions{.callbacks = std::move(callbacks),
                                                       .default_callbacks = {},
                                                       .accelerator = std::move(accelerator)});
    trainer->register_module(critic.ptr());
    trainer->register_optimizer(name,
                                std::make_shared<torch::optim::Adam>(critic->parameters(), 0.05),
                                std::move(schedule));
  }

  std::vector<torch::Tensor> tensors() const {
    auto all = model->parameters();
    for (const auto& parameter : critic->parameters()) all.push_back(parameter);
    return all;
  }

  torch::nn::Sequential model = toy_model();
  torch::nn::Linear critic{3, 1};
  std::shared_ptr<torch::optim::SGD> optimizer = toy_sgd(model);
  std::unique_ptr<LinearPlayers> trainer;
};

/// Returns options for epochs of four batches each.
inline TrainOptions updates_of_players(int64_t num_updates) {
  return {.train_dataset = toy_data(16),
          .per_device_batch_size = 4,
          .train_dataloader_options = {.seed = 5},
          .max_num_updates = num_updates};
}

}  // namespace linkboy::testing
