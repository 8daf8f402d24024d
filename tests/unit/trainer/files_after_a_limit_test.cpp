// States of a run that max_num_updates has ended within an epoch: the callbacks' files are those of
// the run's end, although a longer run trains the rest of the epoch.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <memory>
#include <vector>

#include "linkboy/callbacks/model_ema.hpp"
#include "linkboy/callbacks/save_best_model.hpp"
#include "linkboy/callbacks/save_checkpoint.hpp"
#include "linkboy/checkpoint/checkpoint.hpp"
#include "support/given_scores.hpp"
#include "support/saved_states.hpp"
#include "support/temporary_folder.hpp"
#include "support/toy.hpp"

namespace linkboy::testing::files_after_a_limit_test {
namespace {

using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::Not;
using ::testing::StartsWith;

/// A run with two updates per epoch and one score per epoch. Smaller scores are better.
struct ScoredRun {
  ScoredRun(const TemporaryFolder& folder, std::vector<double> scores)
      : best(
            make<SaveBestModel>({.path = folder / "best.pt", .save_top_k = 2, .monitor = "score"})),
        ema(make<ModelEma>({.path = folder / "ema.pt", .monitor = "score"})),
        toy({recorded_first(std::move(scores)), ema, best,
             make<SaveCheckpoint>({.directory = folder / "checkpoints", .keep_last = 1}),
             saving_in(folder / "states", /*keep=*/1)}) {
    options.eval_dataset = toy_data(4);
  }

  static std::shared_ptr<Callback> recorded_first(std::vector<double> scores) {
    auto score = std::make_shared<GivenScores>(std::move(scores));
    score->set_phase(Callback::Phase::first);
    return score;
  }

  void train_until_update_5() {
    options.max_num_updates = 5;
    toy.trainer.train(options);
  }

  std::shared_ptr<SaveBestModel> best;
  std::shared_ptr<ModelEma> ema;
  Toy toy;
  TrainOptions options = epochs_of_two_updates(4);
};

class FilesAfterALimitTest : public ::testing::Test {
 protected:
  FilesAfterALimitTest() {
    ScoredRun limited(folder_, {2.0, 3.0, 1.0});
    limited.train_until_update_5();
  }

  /// Resumes the run, which is in its third epoch.
  std::unique_ptr<ScoredRun> resumed(std::vector<double> scores) const {
    auto run = std::make_unique<ScoredRun>(folder_, std::move(scores));
    run->options.resume_from = folder_ / "states" / "latest";
    return run;
  }

  void expect_best_of_update_5(const ScoredRun& run) const {
    EXPECT_THAT(run.toy.trainer.lines, Not(Contains(StartsWith("WARNING"))));
    std::vector<double> values;
    for (const auto& saved : run.best->saved()) values.push_back(*saved.value);
    EXPECT_THAT(values, ElementsAre(1.0, 2.0));
    EXPECT_EQ(read_checkpoint(run.best->saved()[0].path).get_double("score"), 1.0);
    EXPECT_EQ(read_checkpoint(folder_ / "ema.pt").get_double("score"), 1.0);
    EXPECT_EQ(states_in(folder_ / "states").size(), 1U);
  }

  std::vector<std::filesystem::path> checkpoints() const {
    std::vector<std::filesystem::path> names;
    for (const auto& file : std::filesystem::directory_iterator(folder_ / "checkpoints")) {
      names.push_back(file.path().filename());
    }
    return names;
  }

  TemporaryFolder folder_;
};

TEST_F(FilesAfterALimitTest, ARunThatResumesAtItsEndKeepsThem) {
  const auto run = resumed({1.0});
  run->train_until_update_5();
  expect_best_of_update_5(*run);
  EXPECT_THAT(checkpoints(), ElementsAre("epoch_3.pt"));
}

TEST_F(FilesAfterALimitTest, ALongerRunKeepsTheBestOfThemAndRemovesTheOthers) {
  const auto run = resumed({4.0, 5.0});
  run->toy.trainer.train(run->options);
  EXPECT_EQ(run->toy.trainer.num_updates(), 8);
  expect_best_of_update_5(*run);
  EXPECT_THAT(checkpoints(), ElementsAre("epoch_4.pt"));
}

}  // namespace
}  // namespace linkboy::testing::files_after_a_limit_test
