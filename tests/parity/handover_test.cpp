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
#include "support/python_peer.hpp"
#include "support/temporary_folder.hpp"
#include "support/toy.hpp"

namespace linkboy::testing::handover_test {
namespace {

namespace optim = torch::optim;

constexpr int64_t kUpdatesBefore = 3;
constexpr int64_t kUpdatesAfter = 20;

enum class Role { kStarts, kContinues };

// The same as in handover_peer.py.
torch::Tensor sequence(int64_t count, int64_t start) {
  const auto index = torch::arange(start, start + count, torch::kLong);
  return ((index * 40503 + 12345).remainder(65536) - 32768).to(torch::kFloat) / 32768;
}

// The side that continues starts with different options, so it needs those of the checkpoint.
template <class OptimizerType, class Options>
std::shared_ptr<optim::Optimizer> make(const std::vector<torch::Tensor>& parameters,
                                       const Options& options, Role role) {
  return std::make_shared<OptimizerType>(parameters,
                                         role == Role::kStarts ? options : Options(1.0));
}

std::shared_ptr<optim::Optimizer> make_optimizer(const std::string& name,
                                                 const std::vector<torch::Tensor>& parameters,
                                                 Role role) {
  if (name == "sgd") {
    const auto options = optim::SGDOptions(0.02).momentum(0.9).weight_decay(1e-3);
    return make<optim::SGD>(parameters, options, role);
  }
  if (name == "adam") {
    const auto options = optim::AdamOptions(1e-3).betas({0.8, 0.95}).eps(1e-7).weight_decay(1e-3);
    return make<optim::Adam>(parameters, options, role);
  }
  if (name == "adamw") {
    const auto options = optim::AdamWOptions(2e-3).betas({0.8, 0.95}).eps(1e-7).weight_decay(0.05);
    return make<optim::AdamW>(parameters, options, role);
  }
  if (name == "adagrad") {
    const auto options = optim::AdagradOptions(0.01).lr_decay(0.05).eps(1e-7).weight_decay(1e-3);
    return make<optim::Adagrad>(parameters, options, role);
  }
  const auto options =
      optim::RMSpropOptions(1e-4).alpha(0.9).eps(1e-7).momentum(0.5).weight_decay(1e-3);
  return make<optim::RMSprop>(parameters, options, role);
}

struct Outcome {
  std::vector<double> losses;          // of the updates after the checkpoint
  std::map<std::string, double> sums;  // of the final parameters and buffers
};

class KeepLosses : public Callback {
 public:
  void on_train_step_end(Trainer&, const Batch&, const StepOutput& output) override {
    losses.push_back(output.loss.item<double>());
  }
  void on_train_update_end(Trainer& trainer) override {
    if (save_to.empty() || trainer.num_updates() != kUpdatesBefore) return;
    trainer.save_checkpoint(save_to);
    losses.clear();
  }
  std::filesystem::path save_to;
  std::vector<double> losses;
};

Outcome train(const std::string& model_name, const std::string& optimizer_name,
              const std::filesystem::path& checkpoint, Role role) {
  const bool starts = role == Role::kStarts;
  // The side that continues starts with different weights, so it needs those of the checkpoint.
  torch::manual_seed(starts ? 1 : 2);
  Model model = fashion_mnist::make_model(model_name);
  auto keep = std::make_shared<KeepLosses>();
  QuietTrainer trainer(model, torch::nn::CrossEntropyLoss(),
                       make_optimizer(optimizer_name, model.parameters(), role),
                       {.callbacks = {keep}, .accelerator = {.device = "cpu"}});
  if (starts) {
    keep->save_to = checkpoint;
  } else {
    trainer.load_checkpoint(checkpoint);
  }

  const bool is_resnet = model_name == "resnet18";
  const int64_t batch = is_resnet ? 2 : 8;
  const int64_t width = is_resnet ? 16 : 28;
  const int64_t samples = (kUpdatesBefore + kUpdatesAfter) * batch;
  const int64_t first = starts ? 0 : kUpdatesBefore * batch;
  const auto images = sequence(samples * width * width, 7).reshape({samples, 1, width, width});
  const auto labels = torch::arange(samples) * 7 % 10;
  TrainOptions options{
      .train_dataset = TensorDataset(images.slice(0, first), labels.slice(0, first)),
      .num_epochs = 1,
      .per_device_batch_size = batch};
  options.train_dataloader_options.shuffle = false;
  trainer.train(options);

  Outcome outcome{keep->losses, {}};
  for (const auto& [name, tensor] : model.named_tensors()) {
    outcome.sums[name] = tensor.to(torch::kDouble).sum().item<double>();
  }
  return outcome;
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

std::string run_peer(const std::string& command, const TemporaryFolder& folder) {
  return run_python("handover_peer.py", {command, folder.path().string()});
}

void expect_equal(const std::map<std::string, Outcome>& ours, const std::string& text) {
  const auto theirs = nlohmann::json::parse(text);
  ASSERT_EQ(theirs.size(), ours.size());
  for (const auto& [name, outcome] : ours) {
    SCOPED_TRACE(name);
    ASSERT_EQ(outcome.losses.size(), std::size_t{kUpdatesAfter});
    EXPECT_EQ(outcome.losses, theirs.at(name)["losses"].get<std::vector<double>>());
    EXPECT_EQ(outcome.sums, (theirs.at(name)["sums"].get<std::map<std::string, double>>()));
  }
}

TEST(HandoverTest, ARunContinuesBitIdenticallyInTheOtherLanguage) {
  SKIP_WITHOUT_PYTHON();
  const TemporaryFolder ours;
  const TemporaryFolder theirs;
  // Both directions run at the same time, because the ResNets are slow.
  auto python_starts = std::async(std::launch::async, [&] { return run_peer("start", theirs); });
  const auto started_here = train_all(ours, Role::kStarts);
  const std::string started_there = python_starts.get();
  ASSERT_FALSE(HasFailure());

  auto python_continues =
      std::async(std::launch::async, [&] { return run_peer("continue", ours); });
  const auto continued_here = train_all(theirs, Role::kContinues);
  const std::string continued_there = python_continues.get();
  ASSERT_FALSE(HasFailure());
  {
    SCOPED_TRACE("from C++ to Python");
    expect_equal(started_here, continued_there);
  }
  {
    SCOPED_TRACE("from Python to C++");
    expect_equal(continued_here, started_there);
  }
}

}  // namespace
}  // namespace linkboy::testing::handover_test
