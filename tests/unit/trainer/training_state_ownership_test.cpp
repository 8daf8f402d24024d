// Folders of training states: which run owns a state, which states a run can remove, and which it
// must report.

#include <gtest/gtest.h>
#include <torch/torch.h>
#include <unistd.h>

#include <fstream>
#include <optional>

#include "checkpoint/atomic_file.hpp"
#include "linkboy/callbacks/model_ema.hpp"
#include "linkboy/callbacks/save_best_model.hpp"
#include "linkboy/callbacks/save_checkpoint.hpp"
#include "linkboy/callbacks/save_training_state.hpp"
#include "linkboy/checkpoint/checkpoint.hpp"
#include "linkboy/checkpoint/training_state_folders.hpp"
#include "support/at_update.hpp"
#include "support/expect_error.hpp"
#include "support/file_contents.hpp"
#include "support/given_scores.hpp"
#include "support/in_every_event.hpp"
#include "support/matchers.hpp"
#include "support/saved_states.hpp"
#include "support/temporary_folder.hpp"
#include "support/toy.hpp"

namespace linkboy::testing::training_state_ownership_test {
namespace {

namespace fs = std::filesystem;
using Names = std::vector<std::string>;

struct TrainingStatesTest : ::testing::Test {
  TemporaryFolder folder_;
  fs::path states_ = folder_ / "states";
};

TEST_F(TrainingStatesTest, ARunResumedIntoAnotherFolderKeepsWhatItSavesThere) {
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

TEST_F(TrainingStatesTest, AFreshRunReportsTheStatesThatItDoesNotResume) {
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
  Toy first({saving_in(states_)});
  EXPECT_EQ(warnings(first, {}), Names{});
  EXPECT_EQ(warnings(first, {}), Names{}) << "the states belong to the same program";
  Toy resumed({saving_in(states_)});
  EXPECT_EQ(warnings(resumed, states_), Names{});
  const Names present = states_in(states_);
  Toy fresh({saving_in(states_)});
  const Names found = warnings(fresh, {});
  ASSERT_EQ(found.size(), 1U);
  EXPECT_THAT(found[0], HasSubstr(c10::str("the ", present.size(), " training states")));
  EXPECT_THAT(found[0], HasSubstr("resume from " + (states_ / present.back()).string()));
}

TEST_F(TrainingStatesTest, ARunKeepsAStateOfAnotherRunUnderAReusedName) {
  train(states_, 2);
  fs::rename(states_, folder_ / "moved");
  train(states_, 2);  // states 1 and 2 of another run, with the old paths
  const std::string bytes = read_bytes(states_ / "state-00000001" / kTrainingStateFile);
  train(states_, 4, folder_ / "moved" / "state-00000002", 1);
  EXPECT_EQ(read_bytes(states_ / "state-00000001" / kTrainingStateFile), bytes);
  EXPECT_EQ(states_in(states_), (Names{"state-00000001", "state-00000002", "state-00000004"}));
}

TEST_F(TrainingStatesTest, AReusedNumberDoesNotRemoveTheNewState) {
  train(states_, 3, {}, 9);
  fs::rename(states_ / "state-00000003", folder_ / "aside");
  train(states_, 4, folder_ / "aside", 2);
  EXPECT_EQ(states_in(states_), (Names{"state-00000002", "state-00000003"}));
  EXPECT_EQ(latest_training_state(states_)->filename(), "state-00000003");
}

TEST_F(TrainingStatesTest, ARenamedStateIsKept) {
  train(states_, 2);
  fs::rename(states_ / "state-00000002", states_ / "keep");
  train(states_, 5, states_ / "keep");
  EXPECT_TRUE(fs::exists(states_ / "keep" / kTrainingStateFile));
  train(states_, 7, states_ / "latest");
  EXPECT_TRUE(fs::exists(states_ / "keep" / kTrainingStateFile));
  EXPECT_EQ(states_in(states_).size(), 3U);
}

TEST_F(TrainingStatesTest, ANameThatIsNotOfAStateIsAnError) {
  const auto save = saving_in(states_);
  StateDict state = save->file_state_dict();
  const auto load = [&](const std::string& name) {
    c10::impl::GenericList names(c10::AnyType::get());
    names.push_back("state-00000001");
    names.push_back(name);
    state.set("saved", names);
    save->load_state_dict(state);
  };
  load("state-00000002");
  for (const char* name : {"keep", "../elsewhere", "/", "", "..", "state-", "state-1/.."}) {
    EXPECT_ERROR(load(name), "it must be state-NUMBER");
    const StateDict kept = save->file_state_dict();
    EXPECT_EQ(kept.get_list("saved").size(), 2U);
  }
}

TEST_F(TrainingStatesTest, AStateBehindASymbolicLinkIsKept) {
  train(states_, 3);
  EXPECT_EQ(states_in(states_), (Names{"state-00000002", "state-00000003"}));
  const fs::path elsewhere = folder_ / "elsewhere";
  fs::rename(states_ / "state-00000002", elsewhere);
  fs::create_directory_symlink(elsewhere, states_ / "state-00000002");
  train(states_, 5, states_ / "state-00000003");
  EXPECT_TRUE(fs::exists(elsewhere / kTrainingStateFile));
}

TEST_F(TrainingStatesTest, EachOfTwoCallbacksRemovesOnlyItsOwnOldStates) {
  const auto second = saving_in(folder_ / "second");
  second->set_name("second");
  Toy toy({saving_in(folder_ / "first"), second});
  toy.trainer.train(epochs_of_two_updates(5));
  EXPECT_EQ(states_in(folder_ / "first"), (Names{"state-00000004", "state-00000005"}));
  EXPECT_EQ(states_in(folder_ / "second"), (Names{"state-00000004", "state-00000005"}));
}

TEST_F(TrainingStatesTest, RequestingTheNextNumberKeepsAStateInProgress) {
  const fs::path state = states_ / "state-00000001";
  AtomicFile file(state / kTrainingStateFile);
  file.flush();
  EXPECT_EQ(next_training_state_number(states_), 2);
  file.commit();
  EXPECT_TRUE(fs::exists(state / kTrainingStateFile));
}

TEST_F(TrainingStatesTest, AStateOfAStopInAnEvaluationIsRemovedLikeOthers) {
  Toy first({saving_in(states_, 1)});
  first.on(Event::eval_step_start, [](Trainer& trainer) { trainer.request_stop(); });
  first.trainer.train(epochs_of_two_updates(4));
  EXPECT_EQ(states_in(states_), Names{"state-00000001"});
  train(states_, 4, states_ / "latest", 1);
  EXPECT_EQ(states_in(states_), Names{"state-00000005"});
}

TEST_F(TrainingStatesTest, ARunWithNothingLeftToDoSavesNothing) {
  train(states_, 2);
  const Names before = states_in(states_);
  train(states_, 2, states_ / "latest");
  EXPECT_EQ(states_in(states_), before);
}

TEST_F(TrainingStatesTest, AnUnreadableStateIsAnError) {
  train(states_, 2);
  const fs::path newest = states_ / "state-00000002" / kTrainingStateFile;
  fs::remove(newest);
  fs::create_symlink(newest.filename(), newest);  // ELOOP, for every user
  EXPECT_ERROR(latest_training_state(states_), "cannot read the training state");
  Toy toy({saving_in(states_)});
  EXPECT_ERROR(toy.train(resumed_from(states_ / "latest", epochs_of_two_updates(3))),
               "name the state to resume from");
  EXPECT_EQ(toy.trainer.num_updates(), 0);
}

TEST_F(TrainingStatesTest, OnlyDamagedStatesAreAnErrorInsteadOfAFreshStart) {
  train(states_, 2);
  for (const auto& name : states_in(states_)) {
    std::ofstream(states_ / name / kTrainingStateFile) << "not a state";
  }
  int num_warnings = 0;
  EXPECT_ERROR(latest_training_state(states_, [&](const std::string&) { ++num_warnings; }),
               "all 2 training states");
  EXPECT_EQ(num_warnings, 2);
}

TEST_F(TrainingStatesTest, CheckingAStateReadsItInPiecesAndFindsMissingParts) {
  const auto file = folder_ / "large.pt";
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

TEST_F(TrainingStatesTest, UnrelatedFilesInTheFolderDoNotEndTheRun) {
  fs::create_directories(states_ / "state-8" / "not a file");
  std::ofstream(states_ / "state-7") << "a file";
  train(states_, 2);
  EXPECT_EQ(states_in(states_), (Names{"state-00000009", "state-00000010"}));
  EXPECT_TRUE(fs::is_regular_file(states_ / "state-7"));
}

TEST_F(TrainingStatesTest, RunningOutOfNumbersIsAFailedSave) {
  fs::create_directories(states_ / "state-9223372036854775807");
  std::ofstream(states_ / "state-9223372036854775807" / "note") << "stays";
  auto save = saving_in(states_);
  Toy toy({save});
  EXPECT_EQ(toy.trainer.train(epochs_of_two_updates(2)).num_epochs, 2);
  EXPECT_EQ(save->num_failures(), 2);
  EXPECT_TRUE(states_in(states_).empty());
}

TEST_F(TrainingStatesTest, EveryExceptionDuringASaveIsAFailedSave) {
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
      Toy toy({unsaveable,
               in_event(Event::train_update_end,
                        [&](Trainer& trainer) {
                          const bool is_first = trainer.num_updates() == 1;
                          unsaveable->is_thrown = is_thrown && is_first;
                          if (!is_first) trainer.request_stop();
                        }),
               save});
      EXPECT_EQ(toy.trainer.train(epochs_of_two_updates(5)).num_updates, 2);
      EXPECT_GE(save->num_failures(), 1);
    }
  }
}

/// After max_num_updates has ended a run within an epoch, the callbacks' files are those of the
/// run's end, although a longer run trains the rest of the epoch. An epoch has two updates and one
/// score; smaller scores are better.
struct FilesAfterALimitTest : ::testing::Test {
  struct ScoredRun {
    ScoredRun(const TemporaryFolder& folder, std::vector<double> scores)
        : best(make<SaveBestModel>(
              {.path = folder / "best.pt", .save_top_k = 2, .monitor = "score"})),
          toy({recorded_first(std::move(scores)),
               make<ModelEma>({.path = folder / "ema.pt", .monitor = "score"}), best,
               make<SaveCheckpoint>({.directory = folder / "checkpoints", .keep_last = 1}),
               saving_in(folder / "states", /*keep=*/1)}) {}

    static std::shared_ptr<Callback> recorded_first(std::vector<double> scores) {
      auto score = std::make_shared<GivenScores>(std::move(scores));
      score->set_phase(Callback::Phase::first);
      return score;
    }

    std::shared_ptr<SaveBestModel> best;
    Toy toy;
  };

  FilesAfterALimitTest() { ScoredRun(folder_, {2.0, 3.0, 1.0}).toy.train(limited_to(5)); }

  TrainOptions limited_to(std::optional<int64_t> num_updates) const {
    TrainOptions options = epochs_of_two_updates(4);
    options.max_num_updates = num_updates;
    return options;
  }

  /// Resumes in the third epoch.
  void expect_best_of_update_5_after(std::vector<double> scores, std::optional<int64_t> num_updates,
                                     const char* checkpoint) {
    ScoredRun run(folder_, std::move(scores));
    const TrainResult result =
        run.toy.train(resumed_from(folder_ / "states" / "latest", limited_to(num_updates)));
    EXPECT_EQ(result.num_updates, num_updates.value_or(8));
    EXPECT_THAT(run.toy.trainer.lines, Not(Contains(StartsWith("WARNING"))));
    std::vector<double> values;
    for (const auto& saved : run.best->saved()) values.push_back(*saved.value);
    EXPECT_THAT(values, ElementsAre(1.0, 2.0));
    EXPECT_EQ(read_checkpoint(run.best->saved()[0].path).get_double("score"), 1.0);
    EXPECT_EQ(read_checkpoint(folder_ / "ema.pt").get_double("score"), 1.0);
    EXPECT_EQ(states_in(folder_ / "states").size(), 1U);
    for (const auto& file : fs::directory_iterator(folder_ / "checkpoints")) {
      EXPECT_EQ(file.path().filename(), checkpoint);
    }
  }

  TemporaryFolder folder_;
};

TEST_F(FilesAfterALimitTest, ARunThatResumesAtItsEndKeepsThem) {
  expect_best_of_update_5_after({1.0}, 5, "epoch_3.pt");
}

TEST_F(FilesAfterALimitTest, ALongerRunKeepsTheBestOfThemAndRemovesTheOthers) {
  expect_best_of_update_5_after({4.0, 5.0}, std::nullopt, "epoch_4.pt");
}

}  // namespace
}  // namespace linkboy::testing::training_state_ownership_test
