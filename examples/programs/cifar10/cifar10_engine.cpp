// Colossal-AI's tutorial, ResNet-34 on CIFAR-10, in a loop of its own: Accelerator does what
// depends on device, precision and number of processes, the loop all else.

#include <ATen/core/grad_mode.h>
#include <fmt/format.h>
#include <torch/nn/modules/loss.h>

#include <cmath>
#include <linkboy/accelerator.hpp>
#include <linkboy/data/dataset.hpp>
#include <linkboy/error.hpp>
#include <linkboy/metrics/accuracy.hpp>
#include <linkboy/metrics/mean.hpp>
#include <linkboy/model.hpp>
#include <linkboy/run/run_config.hpp>
#include <linkboy/vision/resnet.hpp>

#include "recipe.hpp"

namespace cifar10 {
namespace {

class Engine {
 public:
  explicit Engine(const Options& options);

  /// Trains and tests, and says how that went after each epoch.
  void run();

 private:
  std::shared_ptr<linkboy::DataLoader> make_loader(const Images& images,
                                                   linkboy::DataLoaderOptions options) const;
  /// @return The mean loss.
  double train_epoch(int64_t epoch);
  /// @return The share of the test images that the model gets right.
  double test();

  Options options_;
  linkboy::Accelerator accelerator_;
  linkboy::Model model_;
  torch::nn::CrossEntropyLoss loss_function_;
  std::shared_ptr<torch::optim::Optimizer> optimizer_;
  std::shared_ptr<linkboy::DataLoader> train_loader_;
  std::shared_ptr<linkboy::DataLoader> test_loader_;
  linkboy::RunConfig config_;
  std::unique_ptr<linkboy::Scheduler> scheduler_;
};

Engine::Engine(const Options& options)
    : options_(options),
      accelerator_(options.accelerator()),
      model_(linkboy::vision::ResNet(options.depth,
                                     linkboy::vision::ResNetOptions{.num_classes = kNumClasses})),
      optimizer_(make_optimizer(model_.parameters(), options)) {
  const Images train = read_images(options.data, linkboy::vision::Split::train);
  train_loader_ = make_loader(train, train_loader_options(options, train));
  test_loader_ = make_loader(read_images(options.data, linkboy::vision::Split::test),
                             test_loader_options(options));
  accelerator_.prepare(model_, optimizer_.get());

  const int64_t updates_per_epoch = train_loader_->size();
  config_.num_updates_per_epoch = updates_per_epoch;
  config_.max_num_updates = options.max_updates.value_or(options.epochs * updates_per_epoch);
  config_.num_epochs = (config_.max_num_updates + updates_per_epoch - 1) / updates_per_epoch;
  scheduler_ = cosine_by_epoch()(*optimizer_, config_);
  scheduler_->start();
}

std::shared_ptr<linkboy::DataLoader> Engine::make_loader(const Images& images,
                                                         linkboy::DataLoaderOptions options) const {
  options.seed = options_.seed;
  options.pin_memory = accelerator_.device().is_cuda();
  options.shard = {.rank = accelerator_.process_index(), .num_ranks = accelerator_.num_processes()};
  return accelerator_.prepare(
      linkboy::make_data_loader(linkboy::TensorDataset(images.images, images.labels), options));
}

double Engine::train_epoch(int64_t epoch) {
  model_.train();
  linkboy::MeanMetric mean_loss;
  const auto batches = train_loader_->iterate(epoch);
  for (int64_t i = 0; scheduler_->num_updates() < config_.max_num_updates; ++i) {
    const auto batch = batches->next();
    if (!batch) break;
    accelerator_.begin_micro_step(i, train_loader_->size());
    at::Tensor loss;
    {
      const auto autocast = accelerator_.autocast();
      loss = loss_function_(model_(batch->input()), batch->target());
    }
    accelerator_.backward(loss);
    accelerator_.optimizer_step(*optimizer_);
    accelerator_.zero_grad(*optimizer_);
    // In fp16 a step whose gradients overflow is left out, and does not count.
    if (!accelerator_.optimizer_step_was_skipped()) scheduler_->step();
    mean_loss.update(loss.detach());
  }
  return mean_loss.compute(accelerator_.process_group()).item<double>();
}

double Engine::test() {
  const at::NoGradGuard no_grad;
  model_.eval();
  accelerator_
      .broadcast_buffers();  // the statistics of batch normalisation: those of rank 0 on all
  linkboy::Accuracy accuracy({.num_classes = kNumClasses});
  const auto batches = test_loader_->iterate(/*epoch=*/1);
  while (const auto batch = batches->next()) {
    const auto autocast = accelerator_.autocast();
    accuracy.update(model_(batch->input()), batch->target());
  }
  return accuracy.compute(accelerator_.process_group()).item<double>();
}

void Engine::run() {
  double accuracy = 0.0;
  for (int64_t epoch = 1; epoch <= config_.num_epochs; ++epoch) {
    const double lr =
        linkboy::get_param_group_field(*optimizer_, linkboy::ParamGroupField::lr).front();
    const double loss = train_epoch(epoch);
    LINKBOY_CHECK(std::isfinite(loss), "the loss became NaN or infinite in epoch ", epoch,
                  ". Lower --lr.");
    std::string line = fmt::format("epoch {}: train loss {:.4f}, lr {:.4g}", epoch, loss, lr);
    if (epoch % options_.test_interval == 0 || epoch == config_.num_epochs) {
      accuracy = test();
      line += fmt::format(", test accuracy {:.4f}", accuracy);
    }
    accelerator_.print(line);
  }
  accelerator_.print(fmt::format("test accuracy: {:.4f}", accuracy));
}

}  // namespace
}  // namespace cifar10

int main(int argc, char** argv) {
  return linkboy::cli::run_main(argc, argv, [](const linkboy::cli::Arguments& arguments) {
    const auto options = cifar10::parse_options(
        "cifar10_engine",
        "Trains a ResNet on CIFAR-10 in a hand-written loop with linkboy's Accelerator, and tests "
        "it.",
        arguments);
    if (!options) return;
    linkboy::Accelerator::set_seed(options->seed);
    cifar10::Engine(*options).run();
  });
}
