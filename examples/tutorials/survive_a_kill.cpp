// Trains, saves training states, and can kill itself. See the tutorial of this name.
//
//     survive_a_kill FOLDER [UPDATE]    writes to FOLDER; kills itself after UPDATE updates

#include <torch/torch.h>

#include <csignal>
#include <filesystem>
#include <string>

#include <linkboy/callbacks/lambda_callback.hpp>
#include <linkboy/callbacks/save_training_state.hpp>
#include <linkboy/callbacks/stop_on_signal.hpp>
#include <linkboy/cli.hpp>
#include <linkboy/trainer.hpp>

/// Returns points [N, 8] and a linear function of them with noise, [N, 1].
linkboy::TensorDataset make_data(int64_t num_points) {
  const auto points = torch::randn({num_points, 8});
  return {points, points.sum(1, /*keepdim=*/true) + torch::randn({num_points, 1})};
}

void run(const std::filesystem::path& folder, int64_t killing_update) {
  torch::manual_seed(1);
  torch::nn::Sequential net(torch::nn::Linear(8, 32), torch::nn::Tanh(), torch::nn::Dropout(0.2),
                            torch::nn::Linear(32, 1));
  auto optimizer = std::make_shared<torch::optim::AdamW>(net->parameters(), 0.01);

  auto states =
      linkboy::save_training_state({.directory = folder / "states", .every_n_updates = 10});
  auto stop = linkboy::stop_on_signal();
  // Kills the process without warning, as the kernel's out-of-memory killer does.
  auto kill =
      linkboy::lambda_callback({.on_train_update_end = [killing_update](linkboy::Trainer& trainer) {
        if (trainer.num_updates() == killing_update) std::raise(SIGKILL);
      }});

  linkboy::Trainer trainer(net, torch::nn::MSELoss(), optimizer,
                           {.callbacks = {states, stop, kill}, .default_callbacks = {}});
  trainer.train({.train_dataset = make_data(1000),
                 .per_device_batch_size = 64,
                 .num_epochs = 4,
                 .resume_from = folder / "states/latest"});
  trainer.save_checkpoint(folder / "model.pt");
  trainer.print(c10::str("trained for ", trainer.num_updates(), " updates"));
}

int main(int argc, char** argv) {
  return linkboy::cli::run_main(argc, argv, [](const linkboy::cli::Arguments& arguments) {
    if (arguments.empty() || arguments.size() > 2) {
      throw linkboy::cli::UsageError(
          "the arguments are a folder and, optionally, a number of updates.");
    }
    run(arguments[0], arguments.size() == 2 ? std::stoll(arguments[1]) : 0);
  });
}
