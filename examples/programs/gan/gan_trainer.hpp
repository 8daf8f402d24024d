#pragma once

#include <linkboy/trainer.hpp>
#include <memory>

#include "networks.hpp"

namespace gan {

/// Two networks that are trained against each other, with a loss and an optimizer each.
/// `optimizer()` is the generator's; the discriminator's is this class's own business.
class GanTrainer : public linkboy::Trainer {
 public:
  GanTrainer(const Gan& gan, std::shared_ptr<torch::optim::Optimizer> generator_optimizer,
             std::shared_ptr<torch::optim::Optimizer> discriminator_optimizer,
             linkboy::CallbackList callbacks);

 protected:
  linkboy::StepOutput calculate_train_batch_loss(const linkboy::Batch& batch) override;
  void optimizer_step() override;
  void optimizer_zero_grad() override;

 private:
  void set_discriminator_requires_grad(bool on);

  Gan gan_;
  std::shared_ptr<torch::optim::Optimizer> discriminator_optimizer_;
};

}  // namespace gan
