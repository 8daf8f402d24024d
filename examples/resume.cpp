// Interrupts a training run, resumes it, and compares the weights with those of an uninterrupted
// run.
//
//     resume [FOLDER]    FOLDER for the training states (default: output/resume)

#include <torch/torch.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <optional>

#include <linkboy/callbacks/lambda_callback.hpp>
#include <linkboy/callbacks/save_training_state.hpp>
#include <linkboy/cli.hpp>
#include <linkboy/trainer.hpp>

namespace fs = std::filesystem;

/// Returns points [N, 8] and a linear function of them with noise, [N, 1].
linkboy::TensorDataset make_data(int64_t num_points) {
  const auto points = torch::randn({num_points, 8});
  return {points, points.sum(1, /*keepdim=*/true) + torch::randn({num_points, 1})};
}

/// Returns the weights after four epochs of 16 updates. The seed determines the initial weights,
/// the order of the samples and the dropout.
std::vector<at::Tensor> train(const linkboy::Dataset& data, uint64_t seed,
                              linkboy::CallbackList callbacks,
                              std::optional<fs::path> resume_from = std::nullopt) {
  torch::manual_seed(seed);
  torch::nn::Sequential model(torch::nn::Linear(8, 32), torch::nn::Tanh(), torch::nn::Dropout(0.2),
                              torch::nn::Linear(32, 1));
  auto optimizer = std::make_shared<torch::optim::AdamW>(model->parameters(), 0.01);
  linkboy::Trainer trainer(model, torch::nn::MSELoss(), optimizer,
                           {.callbacks = std::move(callbacks)});
  trainer.train({.train_dataset = data,
                 .per_device_batch_size = 64,
                 .num_epochs = 4,
                 .resume_from = std::move(resume_from)});
  return model->parameters();
}

void run(const fs::path& folder) {
  const linkboy::Dataset data = make_data(1000);
  const auto save = [&] {
    // A killed process does not save a state at the end, so this run must not either.
    return linkboy::save_training_state(
        {.directory = folder, .every_n_updates = 10, .save_at_end = false, .keep_last = 1});
  };
  // Stops the run after update 25 to simulate a kill.
  const auto kill = linkboy::lambda_callback({.on_train_update_end = [](linkboy::Trainer& trainer) {
    if (trainer.num_updates() == 25) trainer.request_stop();
  }});
  const auto uninterrupted = train(data, /*seed=*/1, {});
  train(data, /*seed=*/1, {save(), kill});
  // The seed differs, so the weights can be equal only if the training state restores everything.
  const auto resumed = train(data, /*seed=*/2, {save()}, folder / "latest");

  const bool are_equal = std::equal(resumed.begin(), resumed.end(), uninterrupted.begin(),
                                    uninterrupted.end(), torch::equal);
  std::printf("the resumed and the uninterrupted run end with identical weights: %s\n",
              are_equal ? "yes" : "no");
  if (!are_equal) throw linkboy::cli::ExitStatus{1};
}

int main(int argc, char** argv) {
  return linkboy::cli::run_main(argc, argv, [](const linkboy::cli::Arguments& arguments) {
    if (arguments.size() > 1 || (arguments.size() == 1 && arguments[0].starts_with('-'))) {
      throw linkboy::cli::UsageError("the only argument is the folder of the training states.");
    }
    const fs::path own = "output/resume";
    if (arguments.empty()) fs::remove_all(own);  // training states of an earlier call
    run(arguments.empty() ? own : fs::path(arguments[0]));
  });
}
