#include "gan_trainer.hpp"

#include <torch/torch.h>

#include <utility>

namespace gan {

GanTrainer::GanTrainer(const Gan& gan, std::shared_ptr<torch::optim::Optimizer> generator_optimizer,
                       std::shared_ptr<torch::optim::Optimizer> discriminator_optimizer,
                       linkboy::CallbackList callbacks)
    : Trainer(gan, nullptr, std::move(generator_optimizer), {.callbacks = std::move(callbacks)}),
      gan_(gan) {
  register_optimizer("discriminator", std::move(discriminator_optimizer));
  track_loss("loss_discriminator");
  track_loss("loss_generator");
}

linkboy::StepOutput GanTrainer::calculate_train_batch_loss(const linkboy::Batch& batch) {
  const at::Tensor& real = batch["points"];
  const at::Tensor fake = gan_(at::randn({real.size(0), kNoiseSize}, real.options()));

  // One backward pass of the sum computes each network's gradient from its own loss only: detach()
  // excludes the generator from the first loss, and requires_grad excludes the discriminator from
  // the second.
  const at::Tensor loss_discriminator = (at::softplus(-gan_->discriminator->forward(real)) +
                                         at::softplus(gan_->discriminator->forward(fake.detach())))
                                            .mean();
  set_discriminator_requires_grad(false);
  const at::Tensor loss_generator = at::softplus(-gan_->discriminator->forward(fake)).mean();
  set_discriminator_requires_grad(true);

  return {.loss = loss_discriminator + loss_generator,
          .model_outputs = fake,
          .batch_size = batch.size(),
          .extras = {{"loss_discriminator", loss_discriminator.detach()},
                     {"loss_generator", loss_generator.detach()}}};
}

void GanTrainer::optimizer_step() {
  Trainer::optimizer_step();
  step_optimizer("discriminator");
}

void GanTrainer::set_discriminator_requires_grad(bool on) {
  for (at::Tensor& parameter : gan_->discriminator->parameters()) parameter.requires_grad_(on);
}

}  // namespace gan
