// Checkpoints and training states contain everything that is trained, including registered
// modules and optimizers, and members of a subclass.

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <limits>

#include "linkboy/callbacks/save_best_model.hpp"
#include "linkboy/callbacks/save_checkpoint.hpp"
#include "linkboy/checkpoint/checkpoint.hpp"
#include "linkboy/fine_tuning/lr_finder.hpp"
#include "linkboy/schedulers/curves.hpp"
#include "support/at_update.hpp"
#include "support/expect_error.hpp"
#include "support/file_contents.hpp"
#include "support/in_every_event.hpp"
#include "support/matchers.hpp"
#include "support/model_and_critic.hpp"
#include "support/saved_states.hpp"
#include "support/temporary_folder.hpp"
#include "support/toy.hpp"

namespace linkboy::testing::registered_states_test {
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
    trainer = std::make_unique<QuietTrainer>(model, loss,
                                             std::make_shared<torch::optim::Adam>(parameters, 0.1),
                                             TrainerOptions{.callbacks = std::move(callbacks),
                                                            .default_callbacks = {},
                                                            .accelerator = {.device = "cpu"}});
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

constexpr const char* kOptimizers = "registered_optimizers_state_dict";
constexpr const char* kSchedulers = "registered_schedulers_state_dict";

/// Returns the bytes of a checkpoint of the Trainer.
std::string bytes_of(LinearPlayers& trainer) {
  const TemporaryFolder folder;
  trainer.save_checkpoint(folder / "x.pt");
  return read_bytes(folder / "x.pt");
}

/// Trains players for four updates and saves a checkpoint.
struct SavedPlayers {
  SavedPlayers() {
    players.trainer->train(updates_of_players(4));
    players.trainer->save_checkpoint(file);
  }
  TemporaryFolder folder;
  fs::path file = folder / "x.pt";
  Players players;
};

TEST(RegisteredOptimizersTest, AStateAtTheEndOfAnEpochHasTheSchedulesOfItsLastUpdate) {
  struct SavesAtEpochEnd : Callback {
    explicit SavesAtEpochEnd(fs::path path) : folder(std::move(path)) {}
    void on_train_epoch_end(Trainer& trainer) override { trainer.save_training_state(folder); }
    bool saves_training_states() const override { return true; }
    fs::path folder;
  };
  const TemporaryFolder folder;
  Players players(critic_schedule(), {std::make_shared<SavesAtEpochEnd>(folder.path())});
  players.trainer->train(updates_of_players(4));
  const StateDict state = read_checkpoint(folder / "training_state.pt");
  EXPECT_EQ(state.get_dict(kSchedulers).get_dict("critic").get_int("num_updates"), 4);
}

TEST(RegisteredOptimizersTest, CheckpointsContainThemUnderTheirNames) {
  const SavedPlayers saved;
  const StateDict contents = read_checkpoint(saved.file);
  const StateDict critic = contents.get_dict(kOptimizers).get_dict("critic");
  EXPECT_TRUE(critic.contains("param_groups") && critic.contains("state"))
      << "the same keys as in Python";
  EXPECT_EQ(contents.get_dict(kSchedulers).get_dict("critic").get_int("num_updates"), 4);

  saved.players.trainer->save_checkpoint(saved.folder / "less.pt", {},
                                         {.optimizer = false, .scheduler = false});
  EXPECT_FALSE(read_checkpoint(saved.folder / "less.pt").contains(kOptimizers));
  EXPECT_FALSE(read_checkpoint(saved.folder / "less.pt").contains(kSchedulers));
  for (const char* key : {kOptimizers, kSchedulers}) {
    EXPECT_ERROR(saved.players.trainer->save_checkpoint(saved.folder / "y.pt", {{key, int64_t{1}}}),
                 "is a name that linkboy itself uses");
  }
}

TEST(RegisteredOptimizersTest, ACheckpointIsLoadedIntoThem) {
  const SavedPlayers saved;
  Players other;
  other.trainer->train(updates_of_players(1));
  EXPECT_NE(bytes_of(*other.trainer), bytes_of(*saved.players.trainer));
  const StateDict extras = other.trainer->load_checkpoint(saved.file);
  EXPECT_TRUE(extras.empty());
  EXPECT_EQ(bytes_of(*other.trainer), bytes_of(*saved.players.trainer));
  EXPECT_EQ(other.trainer->scheduler("critic")->num_updates(), 4);

  Players left_out;
  left_out.trainer->load_checkpoint(saved.file, {.optimizer = false, .scheduler = false});
  EXPECT_TRUE(left_out.trainer->optimizer("critic")->state().empty());
}

TEST(RegisteredOptimizersTest, ARunThatStartsFromACheckpointRestoresTheirSchedules) {
  const SavedPlayers saved;
  for (const bool load_scheduler : {true, false}) {
    double rate = 0.0;
    const auto look = in_event(Event::train_epoch_start, [&](Trainer& trainer) {
      rate = rates_of(*trainer.optimizer("critic")).front();
    });
    Players fresh(
        critic_schedule(),
        {make<LoadCheckpoint>({.path = saved.file, .load_scheduler = load_scheduler}), look});
    fresh.trainer->train(updates_of_players(1));
    EXPECT_DOUBLE_EQ(rate, load_scheduler ? 0.05 * 0.25 : 0.05) << "two steps in four updates";
  }
}

TEST(RegisteredOptimizersTest, AFileWithoutThemIsLoadedWithoutThem) {
  const SavedPlayers saved;
  StateDict old = read_checkpoint(saved.file);
  old.erase(kOptimizers);
  old.erase(kSchedulers);
  write_checkpoint(saved.folder / "old.pt", old);
  Players other;
  other.trainer->load_checkpoint(saved.folder / "old.pt");
  EXPECT_TRUE(bit_equal(other.tensors(), saved.players.tensors()));
  EXPECT_THAT(other.trainer->lines.back(), HasSubstr("without the registered optimizers' states, "
                                                     "because it is not in the file"));
  Toy without;
  without.trainer.load_checkpoint(saved.file, {.registered_modules = false});
  EXPECT_THAT(without.trainer.lines.at(0), HasSubstr("without the registered optimizers' states"));
}

TEST(RegisteredOptimizersTest, AFileThatDoesNotFitChangesNothing) {
  const SavedPlayers saved;

  Players renamed(critic_schedule(), {}, {.device = test_device()}, "judge");
  const std::string before = bytes_of(*renamed.trainer);
  EXPECT_ERROR(renamed.trainer->load_checkpoint(saved.file, {.scheduler = false}),
               "\"registered_optimizers_state_dict\" the states of critic, but the Trainer has "
               "judge");
  EXPECT_EQ(bytes_of(*renamed.trainer), before);

  StateDict damaged = read_checkpoint(saved.file);
  damaged.set(kOptimizers, StateDict{{"critic", StateDict().to_ivalue()}});
  write_checkpoint(saved.folder / "damaged.pt", damaged);
  Players other;
  other.trainer->train(updates_of_players(2));
  const std::string of_other = bytes_of(*other.trainer);
  EXPECT_ERROR(other.trainer->load_checkpoint(saved.folder / "damaged.pt"),
               "the state of another optimizer");
  EXPECT_EQ(bytes_of(*other.trainer), of_other) << "the first optimizer is restored";

  StateDict of_another_schedule = read_checkpoint(saved.file);
  Players with_line(linear({.start_factor = 1.0, .end_factor = 0.0}));
  with_line.trainer->train(updates_of_players(2));
  EXPECT_ERROR(with_line.trainer->load_checkpoint(saved.file),
               "linkboy::CurveOf<linkboy::StepSchedulerOptions>");
}

TEST(RegisteredOptimizersTest, ATrainingStateWithoutThemIsRefused) {
  const TemporaryFolder folder;
  const auto save = [&](CreateSchedulerFn schedule, const fs::path& states) {
    Players players(std::move(schedule), {saving_in(states), stop_at(2)});
    players.trainer->train(updates_of_players(4));
    return states / states_in(states).back() / "training_state.pt";
  };
  const auto resume = [](CreateSchedulerFn schedule, const fs::path& states) {
    Players players(std::move(schedule));
    players.trainer->train(resumed_from(states, updates_of_players(4)));
  };
  const fs::path file = save(critic_schedule(), folder / "scheduled");
  EXPECT_ERROR(resume({}, folder / "scheduled"),
               "has a scheduler's state for a registered optimizer, but the run does not have");
  StateDict old = read_checkpoint(file);
  old.erase(kSchedulers);
  write_checkpoint(file, old);
  EXPECT_ERROR(resume(critic_schedule(), folder / "scheduled"),
               "has no scheduler's state for a registered optimizer, but the run has such");
  old.erase(kOptimizers);
  write_checkpoint(file, old);
  EXPECT_ERROR(resume({}, folder / "scheduled"), "has no state of the registered optimizers");
}

/// The critic's loss overflows in the second update.
class Overflowing : public LinearPlayers {
 public:
  using LinearPlayers::LinearPlayers;

 protected:
  StepOutput calculate_train_batch_loss(const Batch& batch) override {
    StepOutput output = LinearPlayers::loss_of(batch);
    if (++num_losses_ == 2) {
      output.loss = output.extras.get_tensor("player") +
                    output.extras.get_tensor("critic") * std::numeric_limits<float>::infinity();
    }
    return output;
  }

 private:
  int num_losses_ = 0;
};

void expect_schedule_stays_at_a_skip(const std::string& device) {
  Players parts;
  Overflowing trainer(
      parts.model, parts.critic, parts.optimizer,
      {.default_callbacks = {}, .accelerator = {.device = device, .precision = Precision::fp16}});
  trainer.register_module(parts.critic.ptr());
  const auto critics = std::make_shared<torch::optim::Adam>(parts.critic->parameters(), 0.05);
  trainer.register_optimizer("critic", critics, critic_schedule());
  trainer.train(updates_of_players(4));
  EXPECT_EQ(trainer.scheduler("critic")->num_updates(), 3);
  EXPECT_EQ(trainer.num_updates(), 4) << "the Trainer's own optimizer was stepped";
  const auto& state = *critics->state().at(parts.critic->weight.unsafeGetTensorImpl());
  EXPECT_EQ(static_cast<const torch::optim::AdamParamState&>(state).step(), 3);
}

TEST(RegisteredOptimizersTest, AStepSkippedInFp16DoesNotMoveItsSchedule) {
  expect_schedule_stays_at_a_skip("cpu");
}

TEST(DeviceTest, AStepThatIsSkippedInFp16DoesNotMoveTheScheduleOfItsOptimizer_CUDA) {
  expect_schedule_stays_at_a_skip("cuda:0");
}

}  // namespace
}  // namespace linkboy::testing::registered_states_test
