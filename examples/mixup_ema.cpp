// Trains with mixup, whose targets are probabilities, and keeps a moving average of the weights.

#include <torch/torch.h>

#include <cstdio>

#include <linkboy/callbacks/model_ema.hpp>
#include <linkboy/data/image_transforms.hpp>
#include <linkboy/metrics/classification.hpp>
#include <linkboy/trainer.hpp>

#include "parts/shapes.hpp"

int main() {
  torch::manual_seed(1);
  const linkboy::TensorDataset train(shapes::make_shapes(1024, 28, /*seed=*/1).tensors());
  const linkboy::TensorDataset test(shapes::make_shapes(512, 28, /*seed=*/2).tensors());

  auto net = shapes::make_cnn();
  auto optimizer = std::make_shared<torch::optim::AdamW>(net->parameters(), 3e-3);
  // With this decay, the average covers about 50 updates, which is one and a half epochs. At the
  // end of training, the model receives the averaged weights.
  auto ema = linkboy::model_ema({.decay = 0.98, .apply_at_end = true});

  // CrossEntropyLoss accepts both the mixed probabilities of training and the class indices of the
  // evaluation.
  linkboy::Trainer trainer(
      net, torch::nn::CrossEntropyLoss(), optimizer,
      {.metrics = {{"accuracy", linkboy::accuracy({.num_classes = shapes::kNumClasses})}},
       .callbacks = {ema}});
  const linkboy::Transform normalise = linkboy::normalise({0.4}, {0.25});
  trainer.train(
      {.train_dataset = train,
       .eval_dataset = test,
       .per_device_batch_size = 32,
       .train_dataloader_options = {.transform = linkboy::compose(
                                        {normalise, linkboy::random_horizontal_flip(),
                                         linkboy::mixup(/*alpha=*/0.4, shapes::kNumClasses)})},
       .eval_dataloader_options = {.transform = normalise},
       .num_epochs = 5});

  const linkboy::RunHistory& history = trainer.run_history();
  std::printf("accuracy: %.3f, of the averaged weights %.3f\n",
              history.get_latest_metric("eval_accuracy"),
              history.get_latest_metric("ema_model_eval_accuracy"));
}
