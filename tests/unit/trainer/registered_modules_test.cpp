// A training state contains everything that is trained, including registered modules and members of
// a subclass.

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "linkboy/callbacks/save_best_model.hpp"
#include "linkboy/checkpoint/checkpoint.hpp"
#include "linkboy/fine_tuning/lr_finder.hpp"
#include "support/at_update.hpp"
#include "support/expect_error.hpp"
#include "support/matchers.hpp"
#include "support/saved_states.hpp"
#include "support/temporary_folder.hpp"
#include "support/toy.hpp"

namespace linkboy::testing::registered_modules_test {
namespace {

namespace fs = std::filesystem;

/// A loss with a trained temperature and a count of its calls.
struct LearnedLossImpl : torch::nn::Module {
  LearnedLossImpl() {
    temperature = register_parameter("temperature", torch::ones({1}));
    num_calls = register_buffer("num_calls", torch::zeros({1}));
  }
  torch::Tensor forward(const torch::Tensor& output, const torch::Tensor& target) {
    if (is_training()) num_calls += 1;
    return torch::nn::functional::cross_entropy(output * temperature, target);
  }
  torch::Tensor temperature;
  torch::Tensor num_calls;
};
TORCH_MODULE(LearnedLoss);

struct WithModules {
  explicit WithModules(CallbackList callbacks = {}) {
    auto parameters = model->parameters();
    parameters.push_back(loss->temperature);
    parameters.push_back(other->weight);
    trainer = std::make_unique<QuietTrainer>(
        model, loss, std::make_shared<torch::optim::Adam>(parameters, 0.1),
        TrainerOptions{.callbacks = std::move(callbacks), .default_callbacks = {}});
    trainer->register_module(other.ptr());
  }
  std::vector<torch::Tensor> tensors() const {
    return {loss->temperature, loss->num_calls, other->weight};
  }

  torch::nn::Sequential model = toy_model();
  LearnedLoss loss;
  torch::nn::Linear other{torch::nn::LinearOptions(1, 1).bias(false)};
  std::unique_ptr<QuietTrainer> trainer;
};

TEST(RegisteredModulesTest, AMissingModuleOrStateIsAnErrorThatChangesNothing) {
  const TemporaryFolder folder;
  WithModules toy;
  EXPECT_ERROR(toy.trainer->register_module(nullptr), "the module to register is null");
  toy.trainer->save_checkpoint(folder / "x.pt");
  StateDict contents = read_checkpoint(folder / "x.pt");
  contents.set("registered_modules_state_dict", StateDict());
  write_checkpoint(folder / "x.pt", contents);
  {
    const torch::NoGradGuard no_grad;
    for (auto& parameter : toy.model->parameters()) parameter.fill_(7);
  }
  EXPECT_ERROR(toy.trainer->load_checkpoint(folder / "x.pt"),
               "has no state of the registered module 0");
  EXPECT_EQ(toy.model->parameters()[0][0][0].item<double>(), 7.0);
}

TEST(RegisteredModulesTest, CheckpointsContainThemUnderTheirNumbers) {
  const TemporaryFolder folder;
  WithModules toy({make<SaveBestModel>({.path = folder / "best.pt"})});
  toy.trainer->train(epochs_of_two_updates(2));
  toy.trainer->save_checkpoint(folder / "x.pt");
  const StateDict modules =
      read_checkpoint(folder / "x.pt").get_dict("registered_modules_state_dict");
  EXPECT_TRUE(torch::equal(modules.get_dict("0").get_tensor("temperature"),
                           toy.loss->temperature.detach()));
  EXPECT_TRUE(modules.get_dict("1").contains("weight"));
  EXPECT_TRUE(read_checkpoint(folder / "best.pt").contains("registered_modules_state_dict"));
  const auto saved = copies_of(toy.tensors());
  WithModules other;
  other.trainer->load_checkpoint(folder / "x.pt", {.registered_modules = false});
  EXPECT_FALSE(bit_equal(other.tensors(), saved));
  other.trainer->load_checkpoint(folder / "x.pt");
  EXPECT_TRUE(bit_equal(other.tensors(), saved));
  Toy without;
  without.trainer.load_checkpoint(folder / "x.pt", {.optimizer = false});
  EXPECT_THAT(without.trainer.lines.at(0), HasSubstr("without the registered modules' state"));
}

TEST(RegisteredModulesTest, AFinderRestoresThem) {
  WithModules toy;
  const auto before = copies_of(toy.tensors());
  find_learning_rate(*toy.trainer, epochs_of_two_updates(1), {.num_updates = 10});
  EXPECT_TRUE(bit_equal(toy.tensors(), before));
}

/// Multiplies the loss by a factor that grows with each step. The factor is state of the subclass.
class DriftingTrainer : public QuietTrainer {
 public:
  using QuietTrainer::QuietTrainer;
  torch::Tensor drift = torch::zeros({1});
  int64_t num_steps = 0;

 protected:
  StepOutput calculate_train_batch_loss(const Batch& batch) override {
    ++num_steps;
    drift.add_(0.1);
    StepOutput output = QuietTrainer::calculate_train_batch_loss(batch);
    output.loss = output.loss * (1 + drift.item<double>());
    return output;
  }
  StateDict state_dict() const override { return {{"drift", drift}, {"num_steps", num_steps}}; }
  void load_state_dict(const StateDict& state) override {
    drift = state.get_tensor("drift");
    num_steps = state.get_int("num_steps");
  }
};

TEST(TrainerStateTest, TheTrainingStateContainsMembersOfASubclass) {
  const TemporaryFolder folder;
  ToyOf<DriftingTrainer> whole;
  whole.train(epochs_of_two_updates(3));
  for (const int64_t update : {3, 4}) {
    const fs::path states = folder / std::to_string(update);
    ToyOf<DriftingTrainer>({saving_in(states), stop_at(update)}).train(epochs_of_two_updates(3));
    ToyOf<DriftingTrainer> resumed;
    resumed.train(resumed_from(states, epochs_of_two_updates(3)));
    EXPECT_EQ(resumed.trainer.num_steps, 6);
    EXPECT_TRUE(torch::equal(resumed.trainer.drift, whole.trainer.drift));
    EXPECT_TRUE(bit_equal(resumed.model->parameters(), whole.model->parameters()));
  }
}

}  // namespace
}  // namespace linkboy::testing::registered_modules_test
