// A Trainer that fires a custom event, and two callbacks that handle it.

#include <torch/torch.h>

#include <cstdio>

#include <linkboy/scheduler.hpp>
#include <linkboy/trainer.hpp>

/// Fired when the evaluation loss falls to a milestone: 1, 1/2, 1/4, ... The payload is the loss as
/// a double.
constexpr const char* kMilestone = "milestone";

class MilestoneTrainer : public linkboy::Trainer {
 public:
  using Trainer::Trainer;

 protected:
  void training_run_epoch_end() override {
    const double loss = run_history().get_latest_metric("eval_loss_epoch");
    if (loss > milestone_) return;
    call_event(kMilestone, loss);
    while (milestone_ >= loss) milestone_ /= 2.0;
  }

 private:
  double milestone_ = 1.0;
};

/// Halves the learning rate at each milestone.
class HalveLearningRate : public linkboy::Callback {
 public:
  HalveLearningRate() {
    on_event(kMilestone, [](linkboy::Trainer& trainer, const std::any&) {
      constexpr auto kField = linkboy::ParamGroupField::lr;
      auto rates = linkboy::get_param_group_field(*trainer.optimizer(), kField);
      for (double& rate : rates) rate /= 2.0;
      linkboy::set_param_group_field(*trainer.optimizer(), kField, rates);
    });
  }
};

class PrintMilestones : public linkboy::Callback {
 public:
  PrintMilestones() {
    on_event(kMilestone, [this](linkboy::Trainer& trainer, const std::any& payload) {
      ++num_milestones;
      trainer.print(c10::str("milestone: loss ", std::any_cast<double>(payload), " in epoch ",
                             trainer.run_history().current_epoch()));
    });
  }

  int num_milestones = 0;
};

/// Returns points [N, 2] and the values of a wave function at these points, [N, 1].
linkboy::TensorDataset make_waves(int64_t num_points) {
  const auto points = 4.0 * torch::rand({num_points, 2}) - 2.0;
  return {points, 2.0 * points.prod(1, /*keepdim=*/true).sin()};
}

int main() {
  torch::manual_seed(0);
  torch::nn::Sequential model(torch::nn::Linear(2, 64), torch::nn::Tanh(),
                              torch::nn::Linear(64, 1));
  auto optimizer = std::make_shared<torch::optim::Adam>(model->parameters(), 0.02);
  auto milestones = std::make_shared<PrintMilestones>();

  MilestoneTrainer trainer(model, torch::nn::MSELoss(), optimizer,
                           {.callbacks = {std::make_shared<HalveLearningRate>(), milestones}});
  trainer.train({.train_dataset = make_waves(2000),
                 .eval_dataset = make_waves(500),
                 .per_device_batch_size = 50,
                 .num_epochs = 20});

  const auto rates = linkboy::get_param_group_field(*optimizer, linkboy::ParamGroupField::lr);
  std::printf("%d milestones, learning rate %g\n", milestones->num_milestones, rates[0]);
}
