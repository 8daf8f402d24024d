#pragma once

#include <memory>

#include <linkboy/trainer.hpp>

#include "networks.hpp"

namespace gan {

/// Trains two networks against each other, each with its own loss and optimizer. `optimizer()`
/// updates the generator, and `optimizer("discriminator")` the discriminator.
class GanTrainer : public linkboy::Trainer {
 public:
  GanTrainer(const Gan& gan, std::shared_ptr<torch::optim::Optimizer> generator_optimizer,
             std::shared_ptr<torch::optim::Optimizer> discriminator_optimizer,
             linkboy::CallbackList callbacks);

 protected:
  linkboy::StepOutput calculate_train_batch_loss(const linkboy::Batch& batch) override;
  void optimizer_step() override;

 private:
  void set_discriminator_requires_grad(bool on);

  Gan gan_;
};

}  // namespace gan
