#include "linkboy/callbacks/save_training_state.hpp"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <algorithm>
#include <cmath>
#include <csignal>
#include <fstream>

#include "linkboy/callbacks/stop_on_signal.hpp"
#include "linkboy/checkpoint/checkpoint.hpp"
#include "linkboy/checkpoint/training_state_folders.hpp"
#include "support/at_update.hpp"
#include "support/expect_error.hpp"
#include "support/file_contents.hpp"
#include "support/rehearsal.hpp"
#include "support/temporary_folder.hpp"

namespace linkboy::testing::save_training_state_test {
namespace {

namespace fs = std::filesystem;

class SaveTrainingStateTest : public ::testing::Test {
 protected:
  std::shared_ptr<SaveTrainingState> make(SaveTrainingStateOptions options) {
    options.directory = folder_ / "states";
    return std::make_shared<SaveTrainingState>(options);
  }

  /// Returns the numbers of updates of the saved states, oldest first.
  std::vector<int64_t> updates() {
    std::vector<int64_t> numbers;
    std::vector<fs::path> paths;
    for (const auto& entry : fs::directory_iterator(folder_ / "states")) {
      if (entry.is_directory()) paths.push_back(entry.path());
    }
    std::sort(paths.begin(), paths.end());
    for (const auto& path : paths) {
      const auto state = read_checkpoint(path / kTrainingStateFile).get_dict("training_state");
      numbers.push_back(state.get_int("num_updates"));
    }
    return numbers;
  }

  TemporaryFolder folder_;
};

TEST_F(SaveTrainingStateTest, SavesOnlyAtTheEndByDefault) {
  Rehearsal run(6, {make({})});
  run.trainer->train(run.options);
  EXPECT_EQ(updates(), (std::vector<int64_t>{6}));
}

TEST_F(SaveTrainingStateTest, SavesEveryNUpdatesAndKeepsTheLast) {
  for (bool asynchronous : {false, true}) {
    SCOPED_TRACE(asynchronous);
    Rehearsal run(11, {make({.every_n_updates = 3, .keep_last = 2, .asynchronous = asynchronous})});
    run.trainer->train(run.options);
    EXPECT_EQ(updates(), (std::vector<int64_t>{9, 11}));
    for (const auto& entry : fs::directory_iterator(folder_ / "states")) {
      if (!entry.is_directory()) continue;
      fs::remove(entry.path() / kTrainingStateFile);
      fs::remove(entry.path());
    }
  }
}

TEST_F(SaveTrainingStateTest, SavesEveryNEpochsAndMinutes) {
  {
    Rehearsal run(Rehearsal::kUpdates + 1, {make({.every_n_epochs = 4, .keep_last = 9})});
    run.trainer->train(run.options);
    EXPECT_EQ(updates(), (std::vector<int64_t>{16, 32, 40}));
  }
  Rehearsal run(5, {make({.every_n_minutes = 1e-9, .save_at_end = false, .keep_last = 9})});
  run.trainer->train(run.options);
  EXPECT_EQ(updates(), (std::vector<int64_t>{16, 32, 40, 1, 2, 3, 4, 5}));
}

TEST_F(SaveTrainingStateTest, AResumedRunRemovesTheStatesOfThePreviousRun) {
  const SaveTrainingStateOptions options{.every_n_updates = 2, .keep_last = 2};
  Rehearsal first(5, {make(options)});
  first.trainer->train(first.options);
  EXPECT_EQ(updates(), (std::vector<int64_t>{4, 5}));
  Rehearsal second(9, {make(options)});
  second.options.resume_from = folder_ / "states" / "latest";
  second.trainer->train(second.options);
  EXPECT_EQ(updates(), (std::vector<int64_t>{8, 9}));
  EXPECT_EQ(latest_training_state(folder_ / "states")->filename(), "state-00000006");
}

TEST_F(SaveTrainingStateTest, ANewRunKeepsTheStatesOfOtherRuns) {
  Rehearsal first(5, {make({.every_n_updates = 2})});
  first.trainer->train(first.options);
  Rehearsal second(3, {make({})});
  second.trainer->train(second.options);
  EXPECT_EQ(updates(), (std::vector<int64_t>{4, 5, 3}));
}

TEST_F(SaveTrainingStateTest, IsCalledAfterAllOtherCallbacks) {
  auto save = make({.every_n_updates = 1});
  Rehearsal run(2, {save});
  class CountUpdates : public Callback {
   public:
    void on_train_update_end(Trainer&) override { ++count; }
    StateDict state_dict() const override { return {{"count", count}}; }
    int64_t count = 0;
  };
  run.trainer->callback_handler().add(std::make_shared<CountUpdates>());
  EXPECT_EQ(run.trainer->callback_handler().callbacks().back(), save);
  run.trainer->train(run.options);
  const auto folder = latest_training_state(folder_ / "states");
  const auto state = read_checkpoint(*folder / kTrainingStateFile).get_dict("training_state");
  const auto callbacks = state.get_dict("callbacks");
  for (const auto& [name, value] : callbacks.entries()) {
    if (name.find("CountUpdates") != std::string::npos) {
      EXPECT_EQ(StateDict::from_ivalue(value, name).get_int("count"), 2);
      return;
    }
  }
  FAIL() << "no state of CountUpdates";
}

TEST_F(SaveTrainingStateTest, ANaNLossSavesNothing) {
  class Nan : public Callback {
   public:
    void on_train_update_end(Trainer& trainer) override {
      if (trainer.num_updates() == 3) trainer.request_stop(StopReason::nan);
    }
  };
  auto save = make({.every_n_updates = 2});
  Rehearsal run(Rehearsal::kUpdates + 1, {std::make_shared<Nan>(), save});
  EXPECT_EQ(run.trainer->train(run.options).reason, StopReason::nan);
  EXPECT_EQ(updates(), (std::vector<int64_t>{2}));
}

TEST_F(SaveTrainingStateTest, ANonFiniteWeightSavesNothing) {
  class SpoilWeights : public Callback {
   public:
    void on_train_step_start(Trainer& trainer) override {
      const torch::NoGradGuard no_grad;
      if (trainer.num_updates() == 2) trainer.model().parameters().front().fill_(NAN);
    }
  };
  auto save = make({.every_n_updates = 1, .keep_last = 9});
  Rehearsal run(5, {std::make_shared<SpoilWeights>(), save});
  run.trainer->train(run.options);
  EXPECT_EQ(updates(), (std::vector<int64_t>{1, 2}));
  EXPECT_EQ(save->num_failures(), 4);  // the last one at the end of the run
  const auto& lines = run.trainer->lines;
  EXPECT_TRUE(std::any_of(lines.begin(), lines.end(), [](const std::string& line) {
    return line.starts_with("ERROR: the training state was not saved: \"0.weight\" of the model");
  }));
}

TEST_F(SaveTrainingStateTest, ANonFiniteLossDoesNotPreventSavingGoodWeights) {
  /// The loss of one batch is not finite, and the batch does not change the weights.
  class OneBadLoss : public Callback {
   public:
    void on_train_step_end(Trainer& trainer, const Batch&, const StepOutput& output) override {
      if (trainer.num_updates() == 2) output.loss.detach().fill_(INFINITY);
    }
    void on_gradients_ready(Trainer& trainer) override {
      if (trainer.num_updates() == 2) trainer.optimizer()->zero_grad();
    }
  };
  auto save = make({.every_n_updates = 1, .keep_last = 9});
  Rehearsal run(5, {std::make_shared<OneBadLoss>(), save});
  run.trainer->model().module()->register_buffer("mask", torch::full({2}, -INFINITY));
  run.trainer->train(run.options);
  EXPECT_EQ(updates(), (std::vector<int64_t>{1, 2, 3, 4, 5}));
  EXPECT_EQ(save->num_failures(), 0);
}

TEST_F(SaveTrainingStateTest, AFailedSaveIsReportedAndTheRunContinues) {
  for (bool asynchronous : {false, true}) {
    SCOPED_TRACE(asynchronous);
    auto save = make({.every_n_updates = 10, .asynchronous = asynchronous});
    // From update 20 until the failure is printed, a file has the path of the states' folder.
    const fs::path root = folder_ / "states";
    const fs::path away = folder_ / "states-away";
    struct Block : AtUpdate {  // stop_at is an AtUpdate, and a type can be added only once
      using AtUpdate::AtUpdate;
    };
    const auto block = std::make_shared<Block>(20, [&](Trainer& trainer) {
      trainer.wait_for_saves();  // the save of update 10
      fs::rename(root, away);
      std::ofstream(root) << "a file in its place";
    });
    Rehearsal run(Rehearsal::kUpdates + 1, {block, save});
    run.trainer->on_print = [&] {
      if (!fs::exists(away)) return;
      fs::remove(root);
      fs::rename(away, root);
    };
    EXPECT_EQ(run.trainer->train(run.options).num_updates, Rehearsal::kUpdates);
    EXPECT_EQ(save->num_failures(), 1);
    const auto& lines = run.trainer->lines;
    EXPECT_TRUE(std::any_of(lines.begin(), lines.end(), [](const std::string& line) {
      return line.starts_with("ERROR: the training state was not saved: ");
    }));
    EXPECT_EQ(updates().back(), Rehearsal::kUpdates);
  }
}

TEST_F(SaveTrainingStateTest, RejectsInvalidOptionsAndStates) {
  EXPECT_ERROR(make({.every_n_updates = 0}), "every_n_updates is 0");
  EXPECT_ERROR(make({.every_n_epochs = 0}), "every_n_epochs is 0");
  EXPECT_ERROR(make({.every_n_minutes = 0.0}), "every_n_minutes is 0");
  EXPECT_ERROR(make({.keep_last = 0}), "keep_last is 0");
  EXPECT_ERROR(make({})->load_state_dict({{"saved", 3}}), "it must be a list");
}

TEST_F(SaveTrainingStateTest, UnfinishedAndDamagedStatesAreNotTheLatest) {
  Rehearsal run(7, {make({.every_n_updates = 2, .keep_last = 9})});
  run.trainer->train(run.options);
  const fs::path root = folder_ / "states";
  fs::create_directories(root / "state-00000099");
  std::ofstream(root / "state-00000099" / ".training_state.pt.tmp-1-0") << "half a state";
  fs::create_directories(root / "state-zero");
  EXPECT_EQ(latest_training_state(root)->filename(), "state-00000004");

  std::string bytes = read_bytes(root / "state-00000004" / kTrainingStateFile);
  bytes[bytes.size() / 2] = static_cast<char>(bytes[bytes.size() / 2] ^ 1);
  std::ofstream(root / "state-00000004" / kTrainingStateFile, std::ios::binary) << bytes;
  std::vector<std::string> warnings;
  const auto latest =
      latest_training_state(root, [&](const std::string& line) { warnings.push_back(line); });
  EXPECT_EQ(latest->filename(), "state-00000003");
  ASSERT_EQ(warnings.size(), 1U);
  EXPECT_NE(warnings[0].find("has the checksum"), std::string::npos) << warnings[0];

  EXPECT_EQ(next_training_state_number(root), 100);
  EXPECT_FALSE(fs::exists(root / "state-00000099")) << "files of a killed process are removed";
  EXPECT_EQ(latest_training_state(folder_ / "nowhere"), std::nullopt);
}

TEST_F(SaveTrainingStateTest, LatestWithNothingToResumeStartsFromTheBeginning) {
  Rehearsal run(3);
  run.options.resume_from = folder_ / "states" / "latest";
  EXPECT_EQ(run.trainer->train(run.options).num_updates, 3);
  EXPECT_NE(run.trainer->lines.front().find("Nothing to resume in "), std::string::npos);
}

TEST_F(SaveTrainingStateTest, AFolderOfStatesSelectsItsNewest) {
  Rehearsal first(5, {make({.every_n_updates = 2})});
  first.trainer->train(first.options);
  Rehearsal second(7);
  second.options.resume_from = folder_ / "states";
  EXPECT_EQ(second.trainer->train(second.options).num_updates, 7);
  EXPECT_NE(second.trainer->lines.front().find("update 5)"), std::string::npos);
}

TEST_F(SaveTrainingStateTest, ASignalSavesAStateAndIsReported) {
  auto stop = std::make_shared<StopOnSignal>();
  Rehearsal run(Rehearsal::kUpdates + 1, {stop, make({})});
  class RaiseOnce : public Callback {
   public:
    void on_train_step_start(Trainer& trainer) override {
      if (trainer.num_updates() == 4 && !std::exchange(done_, true)) std::raise(SIGUSR1);
    }

   private:
    bool done_ = false;
  };
  run.trainer->callback_handler().add(std::make_shared<RaiseOnce>());
  // The update in progress is completed.
  EXPECT_EQ(run.trainer->train(run.options).num_updates, 5);
  EXPECT_EQ(stop->signal(), SIGUSR1);
  EXPECT_EQ(updates(), (std::vector<int64_t>{5}));
}

}  // namespace
}  // namespace linkboy::testing::save_training_state_test
