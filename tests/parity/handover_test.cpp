// Hands a training run over between C++ and Python. It must continue as if it had stayed in one
// language: the losses after the checkpoint and the sums of the final tensors are bit-identical.
// linkboy's Trainer steps SGD, Adam, AdamW and Adagrad with the kernels of Python's fused=True, and
// RMSprop with the operations of Python's foreach=True, which are also those of foreach=False.

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <future>
#include <map>
#include <nlohmann/json.hpp>

#include "models.hpp"
#include "parity/small_runs.hpp"
#include "support/at_update.hpp"
#include "support/python_peer.hpp"
#include "support/temporary_folder.hpp"

namespace linkboy::testing::handover_test {
namespace {

namespace optim = torch::optim;
using parity::Outcome;

constexpr int64_t kUpdatesBefore = 3;

/// The ResNet is slow, and has many more numbers to compare per update.
int64_t updates_after(const std::string& model) { return model == "resnet18" ? 4 : 20; }

enum class Role { kStarts, kContinues };

template <class OptimizerType, class Options>
std::shared_ptr<optim::Optimizer> make(const Model& model, const Options& options, Role role) {
  // The side that continues starts with different options, so it needs those of the checkpoint.
  return std::make_shared<OptimizerType>(model.parameters(),
                                         role == Role::kStarts ? options : Options(1.0));
}

std::shared_ptr<optim::Optimizer> make_optimizer(const std::string& name, const Model& model,
                                                 Role role) {
  if (name == "sgd") {
    return make<optim::SGD>(model, optim::SGDOptions(0.02).momentum(0.9).weight_decay(1e-3), role);
  }
  if (name == "adam") {
    const auto options = optim::AdamOptions(1e-3).betas({0.8, 0.95}).eps(1e-7).weight_decay(1e-3);
    return make<optim::Adam>(model, options, role);
  }
  if (name == "adamw") {
    const auto options = optim::AdamWOptions(2e-3).betas({0.8, 0.95}).eps(1e-7).weight_decay(0.05);
    return make<optim::AdamW>(model, options, role);
  }
  if (name == "adagrad") {
    const auto options = optim::AdagradOptions(0.01).lr_decay(0.05).eps(1e-7).weight_decay(1e-3);
    return make<optim::Adagrad>(model, options, role);
  }
  const auto options =
      optim::RMSpropOptions(1e-4).alpha(0.9).eps(1e-7).momentum(0.5).weight_decay(1e-3);
  return make<optim::RMSprop>(model, options, role);
}

Outcome train(const std::string& model_name, const std::string& optimizer_name,
              const std::filesystem::path& checkpoint, Role role) {
  const bool starts = role == Role::kStarts;
  // The side that continues starts with different weights, so it needs those of the checkpoint.
  torch::manual_seed(starts ? 1 : 2);
  Model model = fashion_mnist::make_model(model_name);
  auto keep = std::make_shared<KeepLosses>();
  auto save = std::make_shared<AtUpdate>(starts ? kUpdatesBefore : 0, [&](Trainer& trainer) {
    trainer.save_checkpoint(checkpoint);
    keep->losses.clear();
  });
  QuietTrainer trainer(
      model, torch::nn::CrossEntropyLoss(), make_optimizer(optimizer_name, model, role),
      {.callbacks = {keep, save}, .default_callbacks = {}, .accelerator = {.device = "cpu"}});
  if (!starts) trainer.load_checkpoint(checkpoint);

  const bool is_resnet = model_name == "resnet18";
  const int64_t batch = is_resnet ? 2 : 8;
  const int64_t width = is_resnet ? 16 : 28;
  const int64_t samples = (kUpdatesBefore + updates_after(model_name)) * batch;
  const int64_t first = starts ? 0 : kUpdatesBefore * batch;
  const auto images =
      parity::sequence(samples * width * width, 7).reshape({samples, 1, width, width});
  const auto labels = torch::arange(samples) * 7 % 10;
  TrainOptions options{
      .train_dataset = TensorDataset(images.slice(0, first), labels.slice(0, first)),
      .per_device_batch_size = batch,
      .num_epochs = 1};
  options.train_dataloader_options.shuffle = false;
  trainer.train(options);

  return {keep->losses, parity::tensors_of(model)};
}

/// @return The outcome of each case ("mlp-sgd", for example).
std::map<std::string, Outcome> train_all(const TemporaryFolder& folder, Role role) {
  const SingleThread single_thread;
  std::map<std::string, Outcome> outcomes;
  for (const std::string model : {"mlp", "cnn", "resnet18"}) {
    for (const std::string optimizer : {"sgd", "adam", "adamw", "adagrad", "rmsprop"}) {
      const std::string name = model + "-" + optimizer;
      outcomes[name] = train(model, optimizer, folder / (name + ".pt"), role);
    }
  }
  return outcomes;
}

void expect_equal(const std::map<std::string, Outcome>& ours, const std::string& text) {
  const auto theirs = nlohmann::json::parse(text);
  ASSERT_EQ(theirs.size(), ours.size());
  const SingleThread single_thread;  // more threads add in another order
  for (const auto& [name, outcome] : ours) {
    SCOPED_TRACE(name);
    ASSERT_EQ(std::ssize(outcome.losses), updates_after(name.substr(0, name.find('-'))));
    EXPECT_EQ(outcome.losses, theirs.at(name)["losses"].get<std::vector<float>>());
    EXPECT_EQ(outcome.sums(), theirs.at(name)["sums"].get<std::vector<double>>());
  }
}

TEST(HandoverTest, ARunContinuesBitIdenticallyInTheOtherLanguage) {
  SKIP_WITHOUT_PYTHON();
  const TemporaryFolder ours;
  const TemporaryFolder theirs;
  // Both directions run at the same time, because the ResNets are slow.
  auto start = [](const char* command, const TemporaryFolder& folder) {
    return std::async(std::launch::async, run_python, "handover_peer.py",
                      std::vector<std::string>{command, folder.path().string()});
  };
  auto python_starts = start("start", theirs);
  const auto started_here = train_all(ours, Role::kStarts);
  const std::string started_there = python_starts.get();
  ASSERT_FALSE(HasFailure());

  auto python_continues = start("continue", ours);
  const auto continued_here = train_all(theirs, Role::kContinues);
  const std::string continued_there = python_continues.get();
  ASSERT_FALSE(HasFailure());
  expect_equal(started_here, continued_there);
  expect_equal(continued_here, started_there);
}

}  // namespace
}  // namespace linkboy::testing::handover_test
