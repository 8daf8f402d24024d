// A Trainer's registered optimizers in checkpoints and training states.

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <limits>

#include "linkboy/callbacks/save_checkpoint.hpp"
#include "linkboy/checkpoint/checkpoint.hpp"
#include "linkboy/schedulers/curves.hpp"
#include "support/at_update.hpp"
#include "support/expect_error.hpp"
#include "support/file_contents.hpp"
#include "support/in_every_event.hpp"
#include "support/matchers.hpp"
#include "support/model_and_critic.hpp"
#include "support/saved_states.hpp"
#include "support/temporary_folder.hpp"

namespace linkboy::testing::registered_optimizer_states_test {
namespace {

namespace fs = std::filesystem;

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
}  // namespace linkboy::testing::registered_optimizer_states_test
