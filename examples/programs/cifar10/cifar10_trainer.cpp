// Colossal-AI's tutorial, ResNet-34 on CIFAR-10, with Trainer. Callbacks do everything that is not
// part of the training itself.

#include <fmt/format.h>
#include <torch/nn/modules/loss.h>

#include <linkboy/callbacks/learning_rate_monitor.hpp>
#include <linkboy/callbacks/memory_monitor.hpp>
#include <linkboy/callbacks/stop_on_signal.hpp>
#include <linkboy/error.hpp>
#include <linkboy/metrics/classification.hpp>
#include <linkboy/trainer.hpp>
#include <linkboy/vision/resnet.hpp>

#include "recipe.hpp"

namespace cifar10 {
namespace {

/// If a signal stopped the run, exits with the status of a process that this signal killed.
void exit_like(const linkboy::StopOnSignal& stop_on_signal) {
  constexpr int kKilledBySignal = 128;
  if (const auto signal = stop_on_signal.signal()) {
    throw linkboy::cli::ExitStatus{kKilledBySignal + *signal};
  }
}

void run(const Recipe& recipe) {
  const linkboy::cli::EngineSettings& settings = recipe.settings;
  linkboy::Accelerator::set_seed(settings.seed);
  const Images train = read_images(recipe.data, linkboy::vision::Split::train);
  const Images test = read_images(recipe.data, linkboy::vision::Split::test);
  linkboy::DataLoaderOptions test_options = settings.eval_dataloader;
  test_options.transform = normalise_pixels();

  linkboy::vision::ResNet model(recipe.depth,
                                linkboy::vision::ResNetOptions{.num_classes = kNumClasses});
  auto stop_on_signal = linkboy::stop_on_signal();

  // The default callbacks show the progress, and print the loss and all other recorded metrics
  // after each epoch.
  linkboy::Trainer trainer(
      model, torch::nn::CrossEntropyLoss(), settings.make_optimizer(model->parameters()),
      {.metrics = {{"accuracy", linkboy::accuracy({.num_classes = kNumClasses})}},
       .callbacks = {linkboy::learning_rate_monitor(), linkboy::memory_monitor(), stop_on_signal},
       .accelerator = settings.train.accelerator});

  const linkboy::TrainResult result = trainer.train(
      {.train_dataset = linkboy::TensorDataset(train.images, train.labels),
       .eval_dataset = linkboy::TensorDataset(test.images, test.labels),
       .per_device_batch_size = settings.train_dataloader.batch_size.value(),
       .train_dataloader_options = train_loader_options(settings.train_dataloader, train),
       .eval_dataloader_options = test_options,
       .num_epochs = settings.train.num_epochs,
       .max_num_updates = settings.train.max_num_updates,
       .gradient_accumulation_steps = settings.train.gradient_accumulation_steps,
       .gradient_clip_value = settings.train.gradient_clip_value,
       .gradient_clip_norm = settings.train.gradient_clip_norm,
       .create_scheduler_fn = settings.make_scheduler_fn(),
       .evaluate_every_n_epochs = recipe.test_interval});

  LINKBOY_CHECK(result.reason != linkboy::StopReason::nan, "the loss became NaN or infinite after ",
                result.num_updates, " updates. Lower --lr.");
  if (result.reason == linkboy::StopReason::stop_request) {
    trainer.print(fmt::format("stopped on request after update {}", result.num_updates));
  } else {
    trainer.print(fmt::format("test accuracy: {:.4f}",
                              trainer.run_history().get_latest_metric("eval_accuracy")));
  }
  exit_like(*stop_on_signal);
}

}  // namespace
}  // namespace cifar10

int main(int argc, char** argv) {
  return linkboy::cli::run_main(argc, argv, [](const linkboy::cli::Arguments& arguments) {
    cifar10::run(cifar10::read_recipe(
        "cifar10_trainer", "Trains a ResNet on CIFAR-10 with linkboy's Trainer, and tests it.",
        arguments));
  });
}
