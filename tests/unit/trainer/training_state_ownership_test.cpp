// Folders of training states: which run owns a state, which states a run can remove, and which it
// must report.

#include <gtest/gtest.h>
#include <torch/torch.h>
#include <unistd.h>

#include <fstream>
#include <limits>

#include "checkpoint/atomic_file.hpp"
#include "linkboy/callbacks/save_training_state.hpp"
#include "linkboy/checkpoint/checkpoint.hpp"
#include "linkboy/checkpoint/training_state_folders.hpp"
#include "support/at_update.hpp"
#include "support/expect_error.hpp"
#include "support/file_contents.hpp"
#include "support/saved_states.hpp"
#include "support/temporary_folder.hpp"
#include "support/toy.hpp"

namespace linkboy::testing::training_state_ownership_test {
namespace {

namespace fs = std::filesystem;
using Names = std::vector<std::string>;

TEST(TrainingStatesTest, ARunResumedIntoAnotherFolderKeepsWhatItSavesThere) {
  for (const int64_t keep : {1, 2, 3}) {
    SCOPED_TRACE(keep);
    const TemporaryFolder folder;
    train(folder / "old", 2, {}, keep);
    const Names before = states_in(folder / "old");
    train(folder / "new", 3, folder / "old", keep);
    EXPECT_EQ(states_in(folder / "new"), Names{"state-00000001"});
    EXPECT_EQ(states_in(folder / "old"), before);
    EXPECT_TRUE(latest_training_state(folder / "new"));
  }
}

TEST(TrainingStatesTest, ARunRemovesNoStateOfAnotherRun) {
  const TemporaryFolder folder;
  train(folder / "old", 2);
  train(folder / "new", 1);  // another run's state-00000001
  const std::string bytes = read_bytes(folder / "new" / "state-00000001" / kTrainingStateFile);
  train(folder / "new", 5, folder / "old", 1);
  EXPECT_EQ(read_bytes(folder / "new" / "state-00000001" / kTrainingStateFile), bytes);
}

TEST(TrainingStatesTest, AFreshRunReportsTheStatesThatItDoesNotResume) {
  const TemporaryFolder folder;
  const fs::path states = folder / "states";
  const auto warnings = [&](Toy& toy, const std::optional<fs::path>& from) {
    toy.trainer.lines.clear();
    TrainOptions options = epochs_of_two_updates(3);
    options.resume_from = from;
    toy.trainer.train(options);
    Names found;
    for (const std::string& line : toy.trainer.lines) {
      if (line.starts_with("WARNING: this run does not resume")) found.push_back(line);
    }
    return found;
  };
  Toy first({saving_in(states)});
  EXPECT_EQ(warnings(first, {}), Names{});
  EXPECT_EQ(warnings(first, {}), Names{}) << "the states belong to the same program";
  Toy resumed({saving_in(states)});
  EXPECT_EQ(warnings(resumed, states), Names{});
  const Names present = states_in(states);
  Toy fresh({saving_in(states)});
  const Names found = warnings(fresh, {});
  ASSERT_EQ(found.size(), 1U);
  EXPECT_NE(found[0].find(c10::str("the ", present.size(), " training states")), std::string::npos);
  EXPECT_NE(found[0].find("resume from " + (states / present.back()).string()), std::string::npos)
      << found[0];
}

TEST(TrainingStatesTest, ARunKeepsAStateOfAnotherRunUnderAReusedName) {
  const TemporaryFolder folder;
  train(folder / "states", 2);
  fs::rename(folder / "states", folder / "moved");
  train(folder / "states", 2);  // states 1 and 2 of another run, with the old paths
  const std::string bytes = read_bytes(folder / "states" / "state-00000001" / kTrainingStateFile);
  train(folder / "states", 4, folder / "moved" / "state-00000002", 1);
  EXPECT_EQ(read_bytes(folder / "states" / "state-00000001" / kTrainingStateFile), bytes);
  EXPECT_EQ(states_in(folder / "states"),
            (Names{"state-00000001", "state-00000002", "state-00000004"}));
}

TEST(TrainingStatesTest, AReusedNumberDoesNotRemoveTheNewState) {
  const TemporaryFolder folder;
  train(folder / "states", 3, {}, 9);
  fs::rename(folder / "states" / "state-00000003", folder / "aside");
  train(folder / "states", 4, folder / "aside", 2);
  EXPECT_EQ(states_in(folder / "states"), (Names{"state-00000002", "state-00000003"}));
  EXPECT_EQ(latest_training_state(folder / "states")->filename(), "state-00000003");
}

TEST(TrainingStatesTest, ARenamedStateIsKept) {
  const TemporaryFolder folder;
  train(folder / "states", 2);
  fs::rename(folder / "states" / "state-00000002", folder / "states" / "keep");
  train(folder / "states", 5, folder / "states" / "keep");
  EXPECT_TRUE(fs::exists(folder / "states" / "keep" / kTrainingStateFile));
  train(folder / "states", 7, folder / "states" / "latest");
  EXPECT_TRUE(fs::exists(folder / "states" / "keep" / kTrainingStateFile));
  EXPECT_EQ(states_in(folder / "states").size(), 3U);
}

TEST(TrainingStatesTest, ARunRemovesOnlyFoldersWithNamesOfStates) {
  const TemporaryFolder folder;
  const auto save = saving_in(folder / "states");
  StateDict state = save->state_dict();
  c10::impl::GenericList names(c10::AnyType::get());
  for (const char* name : {"keep", "../elsewhere", "state-", "state-1/..", "state-00000001"}) {
    names.push_back(name);
  }
  state.set("saved", names);
  save->load_state_dict(state);
  const StateDict loaded = save->state_dict();
  const auto kept = loaded.get_list("saved");
  ASSERT_EQ(kept.size(), 1U);
  EXPECT_EQ(kept.front().toStringRef(), "state-00000001");
}

TEST(TrainingStatesTest, EachOfTwoCallbacksRemovesOnlyItsOwnOldStates) {
  const TemporaryFolder folder;
  const auto second = saving_in(folder / "second");
  second->set_name("second");
  Toy toy({saving_in(folder / "first"), second});
  toy.trainer.train(epochs_of_two_updates(5));
  EXPECT_EQ(states_in(folder / "first"), (Names{"state-00000004", "state-00000005"}));
  EXPECT_EQ(states_in(folder / "second"), (Names{"state-00000004", "state-00000005"}));
}

TEST(TrainingStatesTest, RequestingTheNextNumberKeepsAStateInProgress) {
  const TemporaryFolder folder;
  const fs::path state = folder / "states" / "state-00000001";
  AtomicFile file(state / kTrainingStateFile);
  file.flush();
  EXPECT_EQ(next_training_state_number(folder / "states"), 2);
  file.commit();
  EXPECT_TRUE(fs::exists(state / kTrainingStateFile));
}

TEST(TrainingStatesTest, AStateOfAStopInAnEvaluationIsRemovedLikeOthers) {
  class StopInEvaluation : public Callback {
   public:
    void on_eval_step_end(Trainer& trainer, const Batch&, const StepOutput&) override {
      trainer.request_stop();
    }
  };
  const TemporaryFolder folder;
  Toy first({saving_in(folder / "states", 1), std::make_shared<StopInEvaluation>()});
  first.trainer.train(epochs_of_two_updates(4));
  EXPECT_EQ(states_in(folder / "states"), Names{"state-00000001"});
  train(folder / "states", 4, folder / "states" / "latest", 1);
  EXPECT_EQ(states_in(folder / "states"), Names{"state-00000005"});
}

TEST(TrainingStatesTest, ARunWithNothingLeftToDoSavesNothing) {
  const TemporaryFolder folder;
  train(folder / "states", 2);
  const Names before = states_in(folder / "states");
  train(folder / "states", 2, folder / "states" / "latest");
  EXPECT_EQ(states_in(folder / "states"), before);
}

TEST(TrainingStatesTest, AnUnreadableStateIsAnError) {
  const TemporaryFolder folder;
  train(folder / "states", 2);
  const fs::path newest = folder / "states" / "state-00000002" / kTrainingStateFile;
  fs::remove(newest);
  fs::create_symlink(newest.filename(), newest);  // ELOOP, for every user
  EXPECT_ERROR(latest_training_state(folder / "states"), "cannot read the training state");
  Toy toy({saving_in(folder / "states")});
  TrainOptions options = epochs_of_two_updates(3);
  options.resume_from = folder / "states" / "latest";
  EXPECT_ERROR(toy.trainer.train(options), "name the state to resume from");
  EXPECT_EQ(toy.trainer.num_updates(), 0);
}

TEST(TrainingStatesTest, OnlyDamagedStatesAreAnErrorInsteadOfAFreshStart) {
  const TemporaryFolder folder;
  train(folder / "states", 2);
  for (const auto& name : states_in(folder / "states")) {
    std::ofstream(folder / "states" / name / kTrainingStateFile) << "not a state";
  }
  int num_warnings = 0;
  EXPECT_ERROR(
      latest_training_state(folder / "states", [&](const std::string&) { ++num_warnings; }),
      "all 2 training states");
  EXPECT_EQ(num_warnings, 2);
}

TEST(TrainingStatesTest, CheckingAStateReadsItInPiecesAndFindsMissingParts) {
  const TemporaryFolder folder;
  const auto file = folder / "large.pt";
  write_checkpoint(file, {{"tensor", torch::arange(300'000)}, {"number", 7}});
  const StateDict values = read_checkpoint(file, {.with_data = false});
  EXPECT_EQ(values.get_int("number"), 7);
  EXPECT_EQ(values.get_tensor("tensor").sizes(), (std::vector<int64_t>{300'000}));
  std::string bytes = read_bytes(file);
  bytes[1'000'000] = static_cast<char>(bytes[1'000'000] ^ 1);
  std::ofstream(file, std::ios::binary) << bytes;
  EXPECT_ERROR(read_checkpoint(file, {.with_data = false}), "has the checksum");
  EXPECT_EQ(
      read_checkpoint(file, {.verify_checksums = false, .with_data = false}).get_int("number"), 7);
  fs::resize_file(file, bytes.size() / 2);
  EXPECT_ERROR(read_checkpoint(file, {.with_data = false}), "cut short");
}

TEST(TrainingStatesTest, UnrelatedFilesInTheFolderDoNotEndTheRun) {
  const TemporaryFolder folder;
  fs::create_directories(folder / "states" / "state-8" / "not a file");
  std::ofstream(folder / "states" / "state-7") << "a file";
  train(folder / "states", 2);
  EXPECT_EQ(states_in(folder / "states"), (Names{"state-00000009", "state-00000010"}));
  EXPECT_TRUE(fs::is_regular_file(folder / "states" / "state-7"));
}

TEST(TrainingStatesTest, RunningOutOfNumbersIsAFailedSave) {
  const TemporaryFolder folder;
  fs::create_directories(folder / "states" / "state-9223372036854775807");
  std::ofstream(folder / "states" / "state-9223372036854775807" / "note") << "stays";
  auto save = saving_in(folder / "states");
  Toy toy({save});
  EXPECT_EQ(toy.trainer.train(epochs_of_two_updates(2)).num_epochs, 2);
  EXPECT_EQ(save->num_failures(), 2);
  EXPECT_TRUE(states_in(folder / "states").empty());
}

TEST(TrainingStatesTest, EveryExceptionDuringASaveIsAFailedSave) {
  /// Has a state that cannot be pickled, or throws an exception that is not linkboy's.
  class Unsaveable : public Callback {
   public:
    StateDict state_dict() const override {
      if (is_thrown) throw std::bad_alloc();
      return {{"sparse", torch::zeros({2, 2}).to_sparse()}};
    }
    bool is_thrown = false;
  };
  for (const bool is_thrown : {false, true}) {
    for (const bool is_asynchronous : {false, true}) {
      const TemporaryFolder folder;
      auto save = make<SaveTrainingState>({.directory = folder / "states",
                                           .every_n_updates = 1,
                                           .save_at_end = false,
                                           .asynchronous = is_asynchronous});
      auto unsaveable = std::make_shared<Unsaveable>();
      // The state is also requested at the end of an epoch.
      struct Arm : AtUpdate {
        using AtUpdate::AtUpdate;
      };
      Toy toy({unsaveable,
               std::make_shared<Arm>(1, [&](Trainer&) { unsaveable->is_thrown = is_thrown; }),
               std::make_shared<AtUpdate>(2,
                                          [&](Trainer& trainer) {
                                            unsaveable->is_thrown = false;
                                            trainer.request_stop();
                                          }),
               save});
      EXPECT_EQ(toy.trainer.train(epochs_of_two_updates(5)).num_updates, 2);
      EXPECT_GE(save->num_failures(), 1);
    }
  }
}

TEST(TrainingStatesTest, NegativeOrHugeCountsAreRefusedBeforeAnythingChanges) {
  const TemporaryFolder folder;
  Toy first({saving_in(folder / "states"), stop_at(3)});
  first.trainer.train(epochs_of_two_updates(4));
  const auto file = *latest_training_state(folder / "states") / kTrainingStateFile;
  const StateDict contents = read_checkpoint(file);
  const auto refuse = [&](const char* key, const c10::IValue& value, const char* message) {
    StateDict state = contents.get_dict("training_state");
    state.set(key, value);
    StateDict changed = contents;
    changed.set("training_state", state);
    write_checkpoint(folder / "changed" / kTrainingStateFile, changed);
    Toy toy;
    const auto before = copies_of(toy.model->parameters());
    TrainOptions options = epochs_of_two_updates(4);
    options.resume_from = folder / "changed";
    EXPECT_ERROR(toy.trainer.train(options), message);
    EXPECT_TRUE(bit_equal(toy.model->parameters(), before)) << key;
  };
  refuse("num_updates", -1, "must not be negative");
  refuse("micro_step", std::numeric_limits<int64_t>::max() - 1, "within the range of a run");
  refuse("version", 3, "reads version 2");
  refuse("ranks", 1, "contains no list");
}

}  // namespace
}  // namespace linkboy::testing::training_state_ownership_test
