#include "linkboy/callbacks/save_best_model.hpp"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "linkboy/callbacks/model_ema.hpp"
#include "linkboy/checkpoint/checkpoint.hpp"
#include "linkboy/schedulers/curves.hpp"
#include "support/at_update.hpp"
#include "support/expect_error.hpp"
#include "support/given_scores.hpp"
#include "support/load_for_resume.hpp"
#include "support/matchers.hpp"
#include "support/saved_states.hpp"
#include "support/temporary_folder.hpp"

namespace linkboy::testing::save_best_model_test {
namespace {

namespace fs = std::filesystem;

class SaveBestModelTest : public ::testing::Test {
 protected:
  std::shared_ptr<SaveBestModel> saving(SaveBestModelOptions options = {}) const {
    options.path = folder_ / "best.pt";
    options.monitor = "score";
    return std::make_shared<SaveBestModel>(std::move(options));
  }
  /// Returns the score in a checkpoint.
  double score_in(const std::string& name) const {
    return read_checkpoint(folder_ / name).get_double("score");
  }

  TemporaryFolder folder_;
};

TEST_F(SaveBestModelTest, SavesTheBestEpochAndLoadsItAtTheEnd) {
  Scored run(saving());
  run.options.create_scheduler_fn = cosine();
  run.train({3.0, 1.0, 2.0});
  EXPECT_TRUE(bit_equal(run.parameters(), run.weights[1]));
  EXPECT_EQ(run.toy.trainer.scheduler()->num_updates(), 2);
  const StateDict contents = read_checkpoint(folder_ / "best.pt");
  EXPECT_EQ(contents.get_double("score"), 1.0);
  EXPECT_EQ(contents.get_int("epoch"), 2);
  EXPECT_TRUE(contents.contains("optimizer_state_dict"));
  EXPECT_EQ(run.last_line(), "Loading checkpoint with score: 1 from epoch 2");
}

TEST_F(SaveBestModelTest, TheFirstSaveRespectsTheOptions) {
  // In pytorch-accelerated, the first save ignored save_scheduler.
  Scored run(saving({.save_optimizer = false, .save_scheduler = false}));
  run.options.create_scheduler_fn = cosine();
  run.train({3.0});
  const StateDict contents = read_checkpoint(folder_ / "best.pt");
  EXPECT_FALSE(contents.contains("optimizer_state_dict"));
  EXPECT_FALSE(contents.contains("scheduler_state_dict"));
}

TEST_F(SaveBestModelTest, NaNIsNeverTheBestAndWithoutASaveNothingIsLoaded) {
  // In pytorch-accelerated, a NaN before the first save made it load a file that did not exist.
  Scored(saving()).train({NAN, NAN});
  EXPECT_TRUE(folder_.names().empty());
}

TEST_F(SaveBestModelTest, RejectsAPathThatCannotBeWrittenAndZeroFiles) {
  Scored run(make<SaveBestModel>({.path = "/proc/no/such/best.pt", .monitor = "score"}));
  EXPECT_ERROR(run.train({1.0}), "/proc/no");
  EXPECT_EQ(run.toy.trainer.num_updates(), 0);
  EXPECT_ERROR(SaveBestModel({.save_top_k = 0}), "save_top_k is 0");
}

TEST_F(SaveBestModelTest, AFileOfTheSameEpochWithAnotherValueIsNotMistakenForTheBest) {
  const auto known = saving();
  Scored(known).train({1.0});
  Scored(saving()).train({0.5});
  const auto resumed = saving();
  load_for_resume(*resumed, saved_state_of(*known));
  Toy toy;
  resumed->on_training_run_start(toy.trainer);
  EXPECT_TRUE(resumed->saved().empty());
}

TEST_F(SaveBestModelTest, KeepsTheBestKAndLoadsTheBestOfThem) {
  const auto save = saving({.save_top_k = 2});
  Scored run(save);
  run.train({3.0, 1.0, 4.0, 2.0, NAN});
  EXPECT_THAT(folder_.names(), ElementsAre("best-epoch2.pt", "best-epoch4.pt"));
  EXPECT_EQ(save->saved().front().epoch, 2);
  EXPECT_EQ(run.last_line(), "Loading checkpoint with score: 1 from epoch 2");
}

TEST_F(SaveBestModelTest, AResumedRunContinuesWithTheBestOfTheKeptFiles) {
  for (const auto& [num_before, num_after, worst] :
       std::vector<std::tuple<int64_t, int64_t, double>>{{2, 2, 2.5}, {3, 1, 1.0}, {3, 2, 2.0}}) {
    Scored run(saving({.save_top_k = num_before}));
    run.train(num_before == 2 ? std::vector{3.0, 1.0, 4.0} : std::vector{3.0, 1.0, 2.0});
    run.toy.trainer.save_training_state(folder_ / "state");
    const auto after = saving({.save_top_k = num_after});
    Scored resumed(after);
    resumed.options.resume_from = folder_ / "state";
    resumed.train({2.5}, 3);
    EXPECT_EQ(std::ssize(after->saved()), num_after);
    EXPECT_EQ(after->saved().front().value, 1.0);
    EXPECT_EQ(after->saved().back().value, worst);
    for (const auto& saved : after->saved()) {
      EXPECT_EQ(score_in(saved.path.filename().string()), saved.value);
    }
  }
}

TEST_F(SaveBestModelTest, ANewRunSavesItsBestEvenIfThePreviousRunWasBetter) {
  const auto save = saving();
  Scored scored(save);
  scored.train({1.0});
  scored.train({4.0, 3.0, 5.0});
  EXPECT_TRUE(bit_equal(scored.parameters(), scored.weights[1]));
  EXPECT_EQ(save->saved().front().value, 3.0);
}

TEST_F(SaveBestModelTest, ResetOnTrainFalseKeepsTheBestFilesOfAllRuns) {
  const SaveBestModelOptions options{.save_top_k = 2, .reset_on_train = false};
  const auto save = saving(options);
  Scored scored(save);
  scored.train({5.0, 4.0, 0.1});
  const auto best = scored.weights[2];
  scored.train({3.0, 2.0, 0.4});
  EXPECT_THAT(folder_.names(), ElementsAre("best-epoch3-2.pt", "best-epoch3.pt"));
  EXPECT_EQ(score_in("best-epoch3.pt"), 0.1);
  EXPECT_EQ(score_in("best-epoch3-2.pt"), 0.4);
  EXPECT_TRUE(bit_equal(scored.parameters(), best));
  // A run that resumes finds both.
  const auto resumed = saving(options);
  load_for_resume(*resumed, saved_state_of(*save));
  Toy toy;
  resumed->on_training_run_start(toy.trainer);
  ASSERT_EQ(resumed->saved().size(), 2U);
  EXPECT_EQ(resumed->saved()[0].path.filename(), "best-epoch3.pt");
  EXPECT_EQ(resumed->saved()[1].path.filename(), "best-epoch3-2.pt");
}

TEST_F(SaveBestModelTest, TheEarlierOfTwoEqualEpochsIsTheBest) {
  const auto save = saving({.save_top_k = 3});
  Scored scored(save);
  scored.train({2.0, 1.0, 1.0, 1.0});
  std::vector<int64_t> epochs;
  for (const auto& saved : save->saved()) epochs.push_back(saved.epoch);
  EXPECT_THAT(epochs, ElementsAre(2, 3, 4));
  EXPECT_TRUE(bit_equal(scored.parameters(), scored.weights[1]));
}

TEST_F(SaveBestModelTest, AMissingBestCheckpointDoesNotEndTheRun) {
  auto states = saving_in(folder_ / "states");
  Scored run(saving(), {states, std::make_shared<AtUpdate>(2, [&](Trainer&) {
                          fs::remove(folder_ / "best.pt");
                          fs::create_directories(folder_ / "best.pt" / "in the way");
                        })});
  EXPECT_EQ(run.train({1.0, 2.0}), 2);
  EXPECT_EQ(states_in(folder_ / "states").size(), 2U);
}

TEST_F(SaveBestModelTest, ARunResumedWithAnotherPathKeepsTheBestSoFar) {
  const std::vector<double> scores{1.0, 5.0, 2.0, 3.0, 4.0, 0.0};
  const auto run = [&](const std::string& name, int64_t num_epochs, bool is_resumed) {
    const auto options_in = [&](auto options, const char* file) {
      options.path = folder_ / name / file;
      options.monitor = "score";
      options.greater_is_better = true;
      return options;
    };
    auto best = make<SaveBestModel>(options_in(SaveBestModelOptions{.save_top_k = 2}, "best.pt"));
    auto ema = make<ModelEma>(options_in(ModelEmaOptions{.decay = 0.5}, "ema.pt"));
    auto score = std::make_shared<GivenScores>(
        std::vector<double>(scores.begin() + (is_resumed ? 3 : 0), scores.end()));
    score->set_phase(Callback::Phase::measure);
    auto toy =
        std::make_unique<Toy>(CallbackList{score, ema, best, saving_in(folder_ / name / "states")});
    TrainOptions options = epochs_of_two_updates(num_epochs);
    if (is_resumed) options.resume_from = folder_ / "old" / "states";
    toy->trainer.train(options);
    return std::pair{best->saved().front(), std::move(toy)};
  };
  const auto [whole, whole_toy] = run("whole", 6, false);
  EXPECT_EQ(whole.epoch, 2);
  run("old", 3, false);
  const auto [best, toy] = run("new", 6, true);
  EXPECT_EQ(best.epoch, whole.epoch);
  EXPECT_EQ(best.value, whole.value);
  EXPECT_EQ(best.path.parent_path(), folder_ / "new");
  EXPECT_TRUE(bit_equal(toy->model->parameters(), whole_toy->model->parameters()));
  EXPECT_EQ(read_checkpoint(folder_ / "new" / "ema.pt").get_int("epoch"),
            read_checkpoint(folder_ / "whole" / "ema.pt").get_int("epoch"));
}

/// Trains in the folder "old", so that a state in "old/states" names best.pt there.
StateDict state_of_saved_best(const TemporaryFolder& folder_) {
  const auto save = make<SaveBestModel>({.path = folder_ / "old" / "best.pt"});
  Toy toy({save, saving_in(folder_ / "old" / "states")});
  toy.trainer.train(epochs_of_two_updates(1));
  return saved_state_of(*save);
}

TEST_F(SaveBestModelTest, ANameOutsideOfTheRunsFolderIsAnError) {
  StateDict state = state_of_saved_best(folder_);
  SaveBestModel loaded({.path = folder_ / "new" / "best.pt"});
  loaded.load_state_dict(state);
  EXPECT_EQ(loaded.saved().at(0).path, folder_ / "new" / "best.pt");
  for (const std::string& name :
       {(folder_ / "old" / "best.pt").string(), std::string("../old/best.pt"), std::string(".."),
        std::string()}) {
    c10::impl::GenericList files(c10::AnyType::get());
    files.push_back(StateDict{{"name", name}, {"epoch", 1}});
    state.set("files", files);
    EXPECT_ERROR(loaded.load_state_dict(state), "must be a plain name");
    EXPECT_EQ(loaded.saved().size(), 1U);
  }
}

TEST_F(SaveBestModelTest, ASymbolicLinkIsNotFollowed) {
  state_of_saved_best(folder_);
  fs::rename(folder_ / "old" / "best.pt", folder_ / "elsewhere.pt");
  fs::create_symlink(folder_ / "elsewhere.pt", folder_ / "old" / "best.pt");
  Toy toy({make<SaveBestModel>({.path = folder_ / "new" / "best.pt"})});
  TrainOptions options = epochs_of_two_updates(1);
  options.resume_from = folder_ / "old" / "states";
  toy.trainer.train(options);
  EXPECT_THAT(toy.trainer.lines,
              Contains(AllOf(StartsWith("WARNING: the best checkpoint of epoch 1 is ignored: "),
                             HasSubstr("is a symbolic link"))));
}

}  // namespace
}  // namespace linkboy::testing::save_best_model_test
