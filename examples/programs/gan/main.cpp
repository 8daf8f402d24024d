// Trains a GAN on eight Gaussians on a circle.

#include <torch/torch.h>

#include <filesystem>
#include <optional>

#include <linkboy/accelerator.hpp>
#include <linkboy/callbacks/save_training_state.hpp>
#include <linkboy/cli.hpp>

#include "gan_trainer.hpp"
#include "gaussians.hpp"

namespace gan {
namespace {

struct Options {
  int64_t updates = 2500;
  int64_t batch_size = 256;
  double lr = 1e-3;
  uint64_t seed = 0;
  std::optional<std::filesystem::path> states;
};

void run(const Options& options) {
  linkboy::Accelerator::set_seed(options.seed);
  linkboy::CallbackList callbacks;
  linkboy::TrainOptions train_options{.train_dataset = make_points(),
                                      .per_device_batch_size = options.batch_size,
                                      .max_num_updates = options.updates};
  if (options.states) {
    callbacks.push_back(
        linkboy::save_training_state({.directory = *options.states, .every_n_epochs = 1}));
    train_options.resume_from = *options.states / "latest";
  }
  Gan gan;
  // With Adam's default beta1 of 0.9, the two networks oscillate.
  const auto adam = torch::optim::AdamOptions(options.lr).betas({0.5, 0.999});
  GanTrainer trainer(gan, std::make_shared<torch::optim::Adam>(gan->generator->parameters(), adam),
                     std::make_shared<torch::optim::Adam>(gan->discriminator->parameters(), adam),
                     std::move(callbacks));
  const linkboy::TrainResult result = trainer.train(train_options);
  LINKBOY_CHECK(result.reason != linkboy::StopReason::nan,
                "a loss became NaN or infinite. Lower --lr.");
  const linkboy::TensorDataset noise({{"noise", at::randn({10'000, kNoiseSize})}});
  trainer.print(
      measure(trainer.predict({.dataset = noise, .per_device_batch_size = 1000}).toTensor()));
}

}  // namespace
}  // namespace gan

int main(int argc, char** argv) {
  return linkboy::cli::run_main(argc, argv, [](const linkboy::cli::Arguments& arguments) {
    namespace cli = linkboy::cli;
    gan::Options options;
    cli::CommandLine command_line("gan", "Trains a GAN on eight Gaussians on a circle.");
    command_line.add_group("Training")
        .add("updates", "N", &options.updates, "Updates of both networks.", cli::at_least(1))
        .add("batch-size", "N", &options.batch_size, "Points per update.", cli::at_least(1))
        .add("lr", "X", &options.lr, "Learning rate of both networks.", cli::not_negative())
        .add("seed", "N", &options.seed, "Seed of the weights, the points and the noise.")
        .add("states", "DIR", &options.states,
             "Saves training states in this folder, and resumes from the newest one there.");
    if (command_line.parse(arguments)) gan::run(options);
  });
}
