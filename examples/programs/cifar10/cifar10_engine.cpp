// Colossal-AI's tutorial, ResNet-34 on CIFAR-10, in a hand-written loop. The Engine handles the
// device, the precision and the processes; the loop does everything else.

#include <ATen/core/grad_mode.h>
#include <fmt/format.h>
#include <torch/nn/modules/loss.h>

#include <cmath>

#include <linkboy/data/dataset.hpp>
#include <linkboy/engine.hpp>
#include <linkboy/error.hpp>
#include <linkboy/metrics/classification.hpp>
#include <linkboy/metrics/mean.hpp>
#include <linkboy/scheduler.hpp>
#include <linkboy/vision/resnet.hpp>

#include "recipe.hpp"

namespace cifar10 {
namespace {

std::shared_ptr<linkboy::DataLoader> make_loader(const Images& images,
                                                 const linkboy::DataLoaderOptions& options) {
  return linkboy::make_data_loader(linkboy::TensorDataset(images.images, images.labels), options);
}

/// Trains for one epoch and returns its mean loss.
double train_epoch(linkboy::Engine& engine, linkboy::DataLoader& loader, int64_t epoch) {
  linkboy::MeanMetric mean_loss;
  engine.train();
  for (const linkboy::Batch& batch : loader.batches(epoch)) {
    engine.zero_grad();
    const at::Tensor output = engine(batch);
    const at::Tensor loss = engine.loss_function(output, batch.target());
    engine.backward(loss);
    engine.step();
    mean_loss.update(loss.detach());
    if (!engine.has_updates_left()) break;
  }
  return mean_loss.compute(engine.accelerator().process_group()).item<double>();
}

/// Returns the fraction of the images that the model classifies correctly.
double test(linkboy::Engine& engine, linkboy::DataLoader& loader) {
  const at::NoGradGuard no_grad;
  linkboy::Accuracy accuracy({.num_classes = kNumClasses});
  engine.eval();
  for (const linkboy::Batch& batch : loader.batches(/*epoch=*/1)) {
    accuracy.update(engine(batch), batch.target());
  }
  return accuracy.compute(engine.accelerator().process_group()).item<double>();
}

void run(const Recipe& recipe) {
  const linkboy::cli::EngineSettings& settings = recipe.settings;
  linkboy::Accelerator::set_seed(settings.seed);
  const Images train_images = read_images(recipe.data, linkboy::vision::Split::train);
  linkboy::DataLoaderOptions test_options = settings.eval_dataloader;
  test_options.transform = normalise_pixels();
  linkboy::vision::ResNet model(recipe.depth,
                                linkboy::vision::ResNetOptions{.num_classes = kNumClasses});
  auto [engine, train_dataloader, test_loader, scheduler] = linkboy::initialize(
      model, settings.make_optimizer(model->parameters()), torch::nn::CrossEntropyLoss(),
      make_loader(train_images, train_loader_options(settings.train_dataloader, train_images)),
      make_loader(read_images(recipe.data, linkboy::vision::Split::test), test_options),
      settings.make_scheduler_fn(), settings.train);

  double accuracy = 0.0;
  for (int64_t epoch = 1; engine.has_updates_left(); ++epoch) {
    const double lr =
        linkboy::get_param_group_field(engine.optimizer(), linkboy::ParamGroupField::lr).front();
    const double loss = train_epoch(engine, *train_dataloader, epoch);
    LINKBOY_CHECK(std::isfinite(loss), "the loss became NaN or infinite in epoch ", epoch,
                  ". Lower --lr.");
    std::string line = fmt::format("epoch {}: train loss {:.4f}, lr {:.4g}", epoch, loss, lr);
    if (epoch % recipe.test_interval == 0 || !engine.has_updates_left()) {
      accuracy = test(engine, *test_loader);
      line += fmt::format(", test accuracy {:.4f}", accuracy);
    }
    engine.accelerator().print(line);
  }
  engine.accelerator().print(fmt::format("test accuracy: {:.4f}", accuracy));
}

}  // namespace
}  // namespace cifar10

int main(int argc, char** argv) {
  return linkboy::cli::run_main(argc, argv, [](const linkboy::cli::Arguments& arguments) {
    cifar10::run(cifar10::read_recipe(
        "cifar10_engine",
        "Trains a ResNet on CIFAR-10 in a hand-written loop with linkboy's Engine, and tests it.",
        arguments));
  });
}
