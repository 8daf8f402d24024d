#include "linkboy/callbacks/save_training_state.hpp"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <cmath>
#include <csignal>

#include "linkboy/callbacks/lambda_callback.hpp"
#include "linkboy/callbacks/stop_on_signal.hpp"
#include "linkboy/checkpoint/checkpoint.hpp"
#include "support/expect_error.hpp"
#include "support/file_contents.hpp"
#include "support/matchers.hpp"
#include "support/run_with_all_state.hpp"
#include "support/saved_states.hpp"
#include "support/skipping_trainer.hpp"
#include "support/temporary_folder.hpp"

namespace linkboy::testing::save_training_state_test {
namespace {

namespace fs = std::filesystem;

class SaveTrainingStateTest : public ::testing::Test {
 protected:
  std::shared_ptr<SaveTrainingState> saving(SaveTrainingStateOptions options) {
    options.directory = states_;
    return std::make_shared<SaveTrainingState>(options);
  }

  /// Trains a run until this update. If `from` is set, resumes from it.
  static void train_until(int64_t last_update, std::shared_ptr<SaveTrainingState> save,
                          const std::optional<fs::path>& from = {}) {
    Rehearsal run(last_update, {std::move(save)});
    run.options.resume_from = from;
    run.trainer->train(run.options);
  }

  StateDict read(const std::string& name) const {
    return read_checkpoint(states_ / name / kTrainingStateFile).get_dict("training_state");
  }

  /// Returns the numbers of updates of the saved states, oldest first.
  std::vector<int64_t> updates() const {
    std::vector<int64_t> numbers;
    for (const auto& name : states_in(states_))
      numbers.push_back(read(name).get_int("num_updates"));
    return numbers;
  }

  TemporaryFolder folder_;
  fs::path states_ = folder_ / "states";
};

constexpr const char* kNotSaved = "ERROR: the training state was not saved: ";

TEST_F(SaveTrainingStateTest, SavesOnlyAtTheEndByDefault) {
  train_until(6, saving({}));
  EXPECT_THAT(updates(), ElementsAre(6));
}

TEST_F(SaveTrainingStateTest, SavesEveryNUpdatesAndKeepsTheLast) {
  for (bool asynchronous : {false, true}) {
    SCOPED_TRACE(asynchronous);
    states_ = folder_ / (asynchronous ? "asynchronous" : "synchronous");
    train_until(11, saving({.every_n_updates = 3, .keep_last = 2, .asynchronous = asynchronous}));
    EXPECT_THAT(updates(), ElementsAre(9, 11));
  }
}

TEST_F(SaveTrainingStateTest, SavesEveryNEpochsAndMinutes) {
  train_until(Rehearsal::kUpdates + 1, saving({.every_n_epochs = 4, .keep_last = 9}));
  EXPECT_THAT(updates(), ElementsAre(16, 32, 40));
  train_until(5, saving({.every_n_minutes = 1e-9, .save_at_end = false, .keep_last = 9}));
  EXPECT_THAT(updates(), ElementsAre(16, 32, 40, 1, 2, 3, 4, 5));
}

TEST_F(SaveTrainingStateTest, ASecondRunSavesAnUpdateOfTheSameNumber) {
  Toy toy({saving({.every_n_updates = 1, .save_at_end = false})});
  for (int run = 0; run < 2; ++run) toy.train({.max_num_updates = 1});
  EXPECT_THAT(updates(), ElementsAre(1, 1));
}

TEST_F(SaveTrainingStateTest, SkippedUpdatesDoNotSaveAgain) {
  ToyOf<SkippingTrainer> toy(
      {saving({.every_n_updates = 2, .save_at_end = false, .keep_last = 3})});
  toy.trainer.skipped_steps = {1, 2, 9, 10, 11, 12};  // at the start and after update 6
  toy.train({.per_device_batch_size = 2, .max_num_updates = 7});
  EXPECT_THAT(updates(), ElementsAre(2, 4, 6));
  EXPECT_EQ(latest_training_state(states_)->filename(), "state-00000003");
}

TEST_F(SaveTrainingStateTest, AResumedRunRemovesTheStatesOfThePreviousRun) {
  const SaveTrainingStateOptions options{.every_n_updates = 2, .keep_last = 2};
  train_until(5, saving(options));
  EXPECT_THAT(updates(), ElementsAre(4, 5));
  train_until(9, saving(options), states_ / "latest");
  EXPECT_THAT(updates(), ElementsAre(8, 9));
  EXPECT_EQ(latest_training_state(states_)->filename(), "state-00000006");
}

TEST_F(SaveTrainingStateTest, ANewRunKeepsTheStatesOfOtherRuns) {
  train_until(5, saving({.every_n_updates = 2}));
  train_until(3, saving({}));
  EXPECT_THAT(updates(), ElementsAre(4, 5, 3));
}

TEST_F(SaveTrainingStateTest, IsCalledAfterAllOtherCallbacks) {
  class CountUpdates : public Callback {
   public:
    void on_train_update_end(Trainer&) override { ++count; }
    StateDict state_dict() const override { return {{"count", count}}; }
    int64_t count = 0;
  };
  const auto save = saving({.every_n_updates = 1});
  const auto counter = std::make_shared<CountUpdates>();
  Rehearsal run(2, {save});
  run.trainer->callback_handler().add(counter);
  EXPECT_EQ(run.trainer->callback_handler().callbacks().back(), save);
  run.trainer->train(run.options);
  const auto callbacks = read(states_in(states_).back()).get_dict("callbacks");
  EXPECT_EQ(callbacks.get_dict(counter->name()).get_int("count"), 2);
}

TEST_F(SaveTrainingStateTest, ANaNLossSavesNothing) {
  const auto stop_as_for_nan = make<LambdaCallback>({.on_train_update_end = [](Trainer& trainer) {
    if (trainer.num_updates() == 3) trainer.request_stop(StopReason::nan);
  }});
  Rehearsal run(Rehearsal::kUpdates + 1, {stop_as_for_nan, saving({.every_n_updates = 2})});
  EXPECT_EQ(run.trainer->train(run.options).reason, StopReason::nan);
  EXPECT_THAT(updates(), ElementsAre(2));
}

TEST_F(SaveTrainingStateTest, ANonFiniteWeightSavesNothing) {
  const auto spoil_a_weight = make<LambdaCallback>({.on_train_step_start = [](Trainer& trainer) {
    if (trainer.num_updates() == 2) trainer.model().parameters().front().detach().fill_(NAN);
  }});
  const auto save = saving({.every_n_updates = 1, .keep_last = 9});
  Rehearsal run(5, {spoil_a_weight, save});
  run.trainer->train(run.options);
  EXPECT_THAT(updates(), ElementsAre(1, 2));
  EXPECT_EQ(save->num_failures(), 4);  // the last one at the end of the run
  EXPECT_THAT(run.trainer->lines,
              Contains(StartsWith(std::string(kNotSaved) + "\"0.weight\" of the model")));
}

TEST_F(SaveTrainingStateTest, ANonFiniteLossDoesNotPreventSavingGoodWeights) {
  // The loss of one batch is not finite, and the batch does not change the weights.
  const auto one_bad_loss =
      make<LambdaCallback>({.on_train_step_end =
                                [](Trainer& trainer, const Batch&, const StepOutput& output) {
                                  if (trainer.num_updates() == 2)
                                    output.loss.detach().fill_(INFINITY);
                                },
                            .on_gradients_ready =
                                [](Trainer& trainer) {
                                  if (trainer.num_updates() == 2) trainer.optimizer()->zero_grad();
                                }});
  const auto save = saving({.every_n_updates = 1, .keep_last = 9});
  Rehearsal run(5, {one_bad_loss, save});
  run.trainer->model().module()->register_buffer("mask", torch::full({2}, -INFINITY));
  run.trainer->train(run.options);
  EXPECT_THAT(updates(), ElementsAre(1, 2, 3, 4, 5));
  EXPECT_EQ(save->num_failures(), 0);
}

TEST_F(SaveTrainingStateTest, AFailedSaveIsReportedAndTheRunContinues) {
  for (bool asynchronous : {false, true}) {
    SCOPED_TRACE(asynchronous);
    states_ = folder_ / (asynchronous ? "asynchronous" : "synchronous");
    const auto save = saving({.every_n_updates = 10, .keep_last = 9, .asynchronous = asynchronous});
    // From update 20 until the failure is printed, a file has the path of the states' folder.
    const fs::path away = folder_ / "states-away";
    const auto block = make<LambdaCallback>({.on_train_update_end = [&](Trainer& trainer) {
      if (trainer.num_updates() != 20) return;
      trainer.wait_for_saves();  // the save of update 10
      fs::rename(states_, away);
      write_bytes(states_, "a file in its place");
    }});
    Rehearsal run(Rehearsal::kUpdates + 1, {block, save});
    run.trainer->on_print = [&] {
      if (!fs::exists(away)) return;
      fs::remove(states_);
      fs::rename(away, states_);
    };
    EXPECT_EQ(run.trainer->train(run.options).num_updates, Rehearsal::kUpdates);
    EXPECT_EQ(save->num_failures(), 1);
    EXPECT_THAT(run.trainer->lines, Contains(StartsWith(kNotSaved)));
    EXPECT_THAT(updates(), ElementsAre(10, 30, Rehearsal::kUpdates, Rehearsal::kUpdates));
  }
}

TEST_F(SaveTrainingStateTest, RejectsInvalidOptionsAndStates) {
  EXPECT_ERROR(saving({.every_n_updates = 0}), "every_n_updates is 0");
  EXPECT_ERROR(saving({.every_n_epochs = 0}), "every_n_epochs is 0");
  EXPECT_ERROR(saving({.every_n_minutes = 0.0}), "every_n_minutes is 0");
  EXPECT_ERROR(saving({.keep_last = 0}), "keep_last is 0");
  EXPECT_ERROR(saving({})->load_state_dict({{"saved", 3}}), "it must be a list");
}

TEST_F(SaveTrainingStateTest, UnfinishedAndDamagedStatesAreNotTheLatest) {
  train_until(7, saving({.every_n_updates = 2, .keep_last = 9}));
  fs::create_directories(states_ / "state-00000099");
  write_bytes(states_ / "state-00000099" / ".training_state.pt.tmp-1-0", "half a state");
  fs::create_directories(states_ / "state-zero");
  EXPECT_EQ(latest_training_state(states_)->filename(), "state-00000004");

  const fs::path newest = states_ / "state-00000004" / kTrainingStateFile;
  std::string bytes = read_bytes(newest);
  bytes[bytes.size() / 2] = static_cast<char>(bytes[bytes.size() / 2] ^ 1);
  write_bytes(newest, bytes);
  std::vector<std::string> warnings;
  const auto latest =
      latest_training_state(states_, [&](const std::string& line) { warnings.push_back(line); });
  EXPECT_EQ(latest->filename(), "state-00000003");
  EXPECT_THAT(warnings, ElementsAre(HasSubstr("has the checksum")));

  EXPECT_EQ(next_training_state_number(states_), 100);
  EXPECT_FALSE(fs::exists(states_ / "state-00000099")) << "files of a killed process are removed";
  EXPECT_EQ(latest_training_state(folder_ / "nowhere"), std::nullopt);
}

TEST_F(SaveTrainingStateTest, AFolderOfStatesSelectsItsNewest) {
  Rehearsal first(5, {saving({.every_n_updates = 2})});
  first.trainer->train(resumed_from(states_ / "latest", first.options));
  EXPECT_THAT(first.trainer->lines.front(), HasSubstr("Nothing to resume in "));
  Rehearsal second(7);
  EXPECT_EQ(second.trainer->train(resumed_from(states_, second.options)).num_updates, 7);
  EXPECT_THAT(second.trainer->lines.front(), HasSubstr("update 5)"));
}

TEST_F(SaveTrainingStateTest, ASignalSavesAStateAndIsReported) {
  auto stop = std::make_shared<StopOnSignal>();
  bool is_raised = false;
  const auto raise_once = make<LambdaCallback>({.on_train_step_start = [&](Trainer& trainer) {
    if (trainer.num_updates() == 4 && !std::exchange(is_raised, true)) std::raise(SIGUSR1);
  }});
  Rehearsal run(Rehearsal::kUpdates + 1, {stop, saving({}), raise_once});
  // The update in progress is completed.
  EXPECT_EQ(run.trainer->train(run.options).num_updates, 5);
  EXPECT_EQ(stop->signal(), SIGUSR1);
  EXPECT_THAT(updates(), ElementsAre(5));
}

}  // namespace
}  // namespace linkboy::testing::save_training_state_test
