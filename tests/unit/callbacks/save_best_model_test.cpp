#include "linkboy/callbacks/save_best_model.hpp"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "linkboy/callbacks/lambda_callback.hpp"
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

class SaveBestModelTest : public ::testing::Test {
 protected:
  SaveBestModelOptions watching_score(int64_t save_top_k = 1) {
    return {.path = folder_ / "best.pt", .save_top_k = save_top_k, .monitor = "score"};
  }
  std::shared_ptr<SaveBestModel> saving(const SaveBestModelOptions& options) {
    return std::make_shared<SaveBestModel>(options);
  }
  /// Returns a run with one score per epoch.
  static Toy scored(std::vector<double> scores, std::shared_ptr<Callback> save,
                    CallbackList more = {}) {
    more.insert(more.begin(), {std::make_shared<GivenScores>(std::move(scores)), std::move(save)});
    return Toy(std::move(more));
  }
  /// Lets `callback` see an epoch with this score.
  static void see_score(SaveBestModel& callback, Trainer& trainer, double score) {
    trainer.run_history().update_metric("score", score);
    callback.on_training_run_epoch_end(trainer);
  }

  TemporaryFolder folder_;
};

TEST_F(SaveBestModelTest, SavesTheBestEpochAndLoadsItAtTheEnd) {
  std::vector<std::vector<torch::Tensor>> weights;
  const auto keep = make<LambdaCallback>({.on_training_run_epoch_end = [&](Trainer& trainer) {
    weights.push_back(copies_of(trainer.model().parameters()));
  }});
  Toy toy = scored({3.0, 1.0, 2.0}, saving(watching_score()), {keep});
  TrainOptions options = epochs_of_one_update(3);
  options.create_scheduler_fn = cosine();
  toy.trainer.train(options);
  EXPECT_TRUE(bit_equal(toy.model->parameters(), weights[1]));
  EXPECT_EQ(toy.trainer.scheduler()->num_updates(), 2);
  const StateDict contents = read_checkpoint(folder_ / "best.pt");
  EXPECT_EQ(contents.get_double("score"), 1.0);
  EXPECT_EQ(contents.get_int("epoch"), 2);
  EXPECT_TRUE(contents.contains("optimizer_state_dict"));
  EXPECT_EQ(toy.trainer.lines.back(), "Loading checkpoint with score: 1 from epoch 2");
}

TEST_F(SaveBestModelTest, TheFirstSaveRespectsTheOptions) {
  // In pytorch-accelerated, the first save ignored save_scheduler.
  auto options = watching_score();
  options.save_optimizer = options.save_scheduler = false;
  Toy toy = scored({3.0}, saving(options));
  TrainOptions train_options = epochs_of_one_update(1);
  train_options.create_scheduler_fn = cosine();
  toy.trainer.train(train_options);
  const StateDict contents = read_checkpoint(folder_ / "best.pt");
  EXPECT_FALSE(contents.contains("optimizer_state_dict"));
  EXPECT_FALSE(contents.contains("scheduler_state_dict"));
}

TEST_F(SaveBestModelTest, NaNIsNeverTheBestAndWithoutASaveNothingIsLoaded) {
  // In pytorch-accelerated, a NaN before the first save made it load a file that did not exist.
  Toy toy = scored({NAN, NAN}, saving(watching_score()));
  toy.trainer.train(epochs_of_one_update(2));
  EXPECT_TRUE(folder_.names().empty());
}

TEST_F(SaveBestModelTest, AnUnwritablePathIsReportedBeforeTraining) {
  Toy toy({make<SaveBestModel>({.path = "/proc/no/such/best.pt", .monitor = "score"})});
  EXPECT_ERROR(toy.trainer.train(epochs_of_one_update(1)), "/proc/no");
  EXPECT_EQ(toy.trainer.num_updates(), 0);
}

TEST_F(SaveBestModelTest, AResumedRunKeepsTheBestValue) {
  Toy toy;
  SaveBestModel first(watching_score());
  first.on_training_run_start(toy.trainer);
  see_score(first, toy.trainer, 1.0);
  SaveBestModel second(watching_score());
  load_for_resume(second, saved_state_of(first));
  second.on_training_run_start(toy.trainer);
  see_score(second, toy.trainer, 2.0);
  EXPECT_EQ(read_checkpoint(folder_ / "best.pt").get_double("score"), 1.0);
}

// The best file of a killed run can be newer than the training state from which the next run
// resumes.
TEST_F(SaveBestModelTest, AFileReplacedAfterTheStateIsNotMistakenForTheBest) {
  Toy killed = scored({3.0, 1.0, 0.5}, saving(watching_score()),
                      {std::make_shared<AtUpdate>(2, [&](Trainer& trainer) {
                        trainer.save_training_state(folder_ / "state");
                      })});
  killed.trainer.train(epochs_of_one_update(3));
  Toy resumed = scored({2.0, 2.5}, saving(watching_score()));
  resumed.trainer.train(resumed_from(folder_ / "state", epochs_of_one_update(3)));
  EXPECT_EQ(resumed.trainer.lines.back(), "Loading checkpoint with score: 2 from epoch 2");
}

TEST_F(SaveBestModelTest, AFileOfTheSameEpochWithAnotherValueIsNotMistakenForTheBest) {
  const auto save_with = [](SaveBestModel& callback, double score) {
    Toy toy;
    callback.on_training_run_start(toy.trainer);
    see_score(callback, toy.trainer, score);
  };
  SaveBestModel known(watching_score());
  SaveBestModel other(watching_score());
  save_with(known, 1.0);
  save_with(other, 0.5);
  SaveBestModel resumed(watching_score());
  load_for_resume(resumed, saved_state_of(known));
  Toy toy;
  resumed.on_training_run_start(toy.trainer);
  EXPECT_TRUE(resumed.saved().empty());
}

TEST_F(SaveBestModelTest, KeepsTheBestKAndLoadsTheBestOfThem) {
  const auto save = saving(watching_score(/*save_top_k=*/2));
  Toy toy = scored({3.0, 1.0, 4.0, 2.0, NAN}, save);
  toy.trainer.train(epochs_of_one_update(5));
  EXPECT_THAT(folder_.names(), ElementsAre("best-epoch2.pt", "best-epoch4.pt"));
  EXPECT_EQ(save->saved().front().epoch, 2);
  EXPECT_EQ(toy.trainer.lines.back(), "Loading checkpoint with score: 1 from epoch 2");
}

TEST_F(SaveBestModelTest, AResumedRunContinuesWithTheBestK) {
  Toy toy = scored({3.0, 1.0}, saving(watching_score(/*save_top_k=*/2)));
  toy.trainer.train(epochs_of_one_update(2));
  toy.trainer.save_training_state(folder_ / "state");
  const auto after = saving(watching_score(/*save_top_k=*/2));
  Toy resumed = scored({2.0}, after);
  resumed.trainer.train(resumed_from(folder_ / "state", epochs_of_one_update(3)));
  EXPECT_THAT(folder_.names(), ElementsAre("best-epoch2.pt", "best-epoch3.pt", "state"));
  EXPECT_EQ(after->saved().front().value, 1.0);
  EXPECT_EQ(after->saved().back().value, 2.0);
}

TEST_F(SaveBestModelTest, AResumedRunThatKeepsFewerContinuesWithTheBestOfThem) {
  for (const int64_t num_kept : {1, 2}) {
    Toy toy = scored({3.0, 1.0, 2.0}, saving(watching_score(/*save_top_k=*/3)));
    toy.trainer.train(epochs_of_one_update(3));
    toy.trainer.save_training_state(folder_ / "state");
    const auto after = saving(watching_score(num_kept));
    Toy resumed = scored({2.5}, after);
    resumed.trainer.train(resumed_from(folder_ / "state", epochs_of_one_update(4)));
    EXPECT_EQ(std::ssize(after->saved()), num_kept);
    EXPECT_EQ(after->saved().back().value, num_kept == 1 ? 1.0 : 2.0);
    for (const auto& saved : after->saved()) {
      EXPECT_EQ(read_checkpoint(saved.path).get_double("score"), saved.value);
    }
  }
}

TEST_F(SaveBestModelTest, RefusesToKeepZeroFiles) {
  EXPECT_ERROR(SaveBestModel({.save_top_k = 0}), "save_top_k is 0");
}

class SaveBestModelTwiceTest : public ::testing::Test {
 protected:
  Scored saving(SaveBestModelOptions options) {
    options.path = folder_ / "best.pt";
    options.monitor = "score";
    save_ = std::make_shared<SaveBestModel>(options);
    return Scored(save_);
  }
  TemporaryFolder folder_;
  std::shared_ptr<SaveBestModel> save_;
};

TEST_F(SaveBestModelTwiceTest, ANewRunSavesItsBestEvenIfThePreviousRunWasBetter) {
  Scored scored = saving({});
  scored.train({1.0});
  scored.train({4.0, 3.0, 5.0});
  EXPECT_TRUE(bit_equal(scored.parameters(), scored.weights[1]));
  EXPECT_EQ(save_->saved().front().value, 3.0);
}

TEST_F(SaveBestModelTwiceTest, ResetOnTrainFalseLoadsTheBestOfAllRuns) {
  Scored scored = saving({.reset_on_train = false});
  scored.train({1.0});
  const auto best = scored.weights[0];
  scored.train({4.0, 3.0});
  EXPECT_TRUE(bit_equal(scored.parameters(), best));
}

TEST_F(SaveBestModelTwiceTest, ResetOnTrainFalseKeepsTheBestFilesOfAllRuns) {
  Scored scored = saving({.save_top_k = 2, .reset_on_train = false});
  scored.train({5.0, 4.0, 0.1});
  const auto best = scored.weights[2];
  scored.train({3.0, 2.0, 0.4});
  EXPECT_THAT(folder_.names(), ElementsAre("best-epoch3-2.pt", "best-epoch3.pt"));
  EXPECT_EQ(read_checkpoint(folder_ / "best-epoch3.pt").get_double("score"), 0.1);
  EXPECT_EQ(read_checkpoint(folder_ / "best-epoch3-2.pt").get_double("score"), 0.4);
  EXPECT_TRUE(bit_equal(scored.parameters(), best));
  // A run that resumes finds both.
  SaveBestModel resumed(
      {.path = folder_ / "best.pt", .save_top_k = 2, .monitor = "score", .reset_on_train = false});
  load_for_resume(resumed, saved_state_of(*save_));
  Toy toy;
  resumed.on_training_run_start(toy.trainer);
  ASSERT_EQ(resumed.saved().size(), 2U);
  EXPECT_EQ(resumed.saved()[0].path.filename(), "best-epoch3.pt");
  EXPECT_EQ(resumed.saved()[1].path.filename(), "best-epoch3-2.pt");
}

TEST_F(SaveBestModelTwiceTest, TheEarlierOfTwoEqualEpochsIsTheBest) {
  Scored scored = saving({.save_top_k = 3});
  scored.train({2.0, 1.0, 1.0, 1.0});
  std::vector<int64_t> epochs;
  for (const auto& saved : save_->saved()) epochs.push_back(saved.epoch);
  EXPECT_THAT(epochs, ElementsAre(2, 3, 4));
  EXPECT_TRUE(bit_equal(scored.parameters(), scored.weights[1]));
}

namespace fs = std::filesystem;

TEST(SaveBestModelResumedTest, AMissingBestCheckpointDoesNotEndTheRun) {
  const TemporaryFolder folder;
  auto save = make<SaveBestModel>({.path = folder / "best.pt"});
  auto states = saving_in(folder / "states");
  Toy toy({save, states, std::make_shared<AtUpdate>(4, [&](Trainer&) {
             fs::remove(folder / "best.pt");
             fs::create_directories(folder / "best.pt" / "in the way");
           })});
  EXPECT_EQ(toy.trainer.train(epochs_of_two_updates(2)).num_epochs, 2);
  EXPECT_EQ(states_in(folder / "states").size(), 2U);
}

TEST(SaveBestModelResumedTest, ARunResumedWithAnotherPathKeepsTheBestSoFar) {
  const TemporaryFolder folder;
  const std::vector<double> scores{1.0, 5.0, 2.0, 3.0, 4.0, 0.0};
  const auto run = [&](const std::string& name, int64_t num_epochs, bool is_resumed) {
    const auto options_in = [&](auto options, const char* file) {
      options.path = folder / name / file;
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
        std::make_unique<Toy>(CallbackList{score, ema, best, saving_in(folder / name / "states")});
    TrainOptions options = epochs_of_two_updates(num_epochs);
    if (is_resumed) options.resume_from = folder / "old" / "states";
    toy->trainer.train(options);
    return std::pair{best->saved().front(), std::move(toy)};
  };
  const auto [whole, whole_toy] = run("whole", 6, false);
  EXPECT_EQ(whole.epoch, 2);
  run("old", 3, false);
  const auto [best, toy] = run("new", 6, true);
  EXPECT_EQ(best.epoch, whole.epoch);
  EXPECT_EQ(best.value, whole.value);
  EXPECT_EQ(best.path.parent_path(), folder / "new");
  EXPECT_TRUE(bit_equal(toy->model->parameters(), whole_toy->model->parameters()));
  EXPECT_EQ(read_checkpoint(folder / "new" / "ema.pt").get_int("epoch"),
            read_checkpoint(folder / "whole" / "ema.pt").get_int("epoch"));
}

/// Trains in the folder "old", so that a state in "old/states" names best.pt there.
StateDict state_of_saved_best(const TemporaryFolder& folder) {
  auto save = make<SaveBestModel>({.path = folder / "old" / "best.pt"});
  Toy toy({save, saving_in(folder / "old" / "states")});
  toy.trainer.train(epochs_of_two_updates(1));
  return saved_state_of(*save);
}

TEST(SaveBestModelResumedTest, ANameOutsideOfTheRunsFolderIsAnError) {
  const TemporaryFolder folder;
  StateDict state = state_of_saved_best(folder);
  SaveBestModel loaded({.path = folder / "new" / "best.pt"});
  loaded.load_state_dict(state);
  EXPECT_EQ(loaded.saved().at(0).path, folder / "new" / "best.pt");
  for (const std::string& name :
       {(folder / "old" / "best.pt").string(), std::string("../old/best.pt"), std::string(".."),
        std::string()}) {
    c10::impl::GenericList names(c10::AnyType::get());
    names.push_back(name);
    state.set("names", names);
    EXPECT_ERROR(loaded.load_state_dict(state), "must be a plain name");
    EXPECT_EQ(loaded.saved().size(), 1U);
  }
}

TEST(SaveBestModelResumedTest, ASymbolicLinkIsNotFollowed) {
  const TemporaryFolder folder;
  state_of_saved_best(folder);
  fs::rename(folder / "old" / "best.pt", folder / "elsewhere.pt");
  fs::create_symlink(folder / "elsewhere.pt", folder / "old" / "best.pt");
  Toy toy({make<SaveBestModel>({.path = folder / "new" / "best.pt"})});
  TrainOptions options = epochs_of_two_updates(1);
  options.resume_from = folder / "old" / "states";
  toy.trainer.train(options);
  EXPECT_THAT(toy.trainer.lines,
              Contains(AllOf(StartsWith("WARNING: the best checkpoint of epoch 1 is ignored: "),
                             HasSubstr("is a symbolic link"))));
}

}  // namespace
}  // namespace linkboy::testing::save_best_model_test
