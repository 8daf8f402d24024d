#include <gtest/gtest.h>

#include "linkboy/callbacks/model_ema.hpp"
#include "linkboy/callbacks/save_best_model.hpp"
#include "linkboy/callbacks/save_predictions.hpp"
#include "support/at_update.hpp"
#include "support/file_size_limit.hpp"
#include "support/given_scores.hpp"
#include "support/matchers.hpp"
#include "support/saved_states.hpp"
#include "support/temporary_folder.hpp"

namespace linkboy::testing::full_disk_test {
namespace {

// Tests each callback that writes, with a disk that is full from the first update on.
TEST(FullDiskTest, AFullDiskDoesNotEndTheRunForAnyCallback) {
  const TemporaryFolder folder;
  const std::vector<std::pair<std::string, std::shared_ptr<Callback>>> writers{
      {"the best model was not saved", make<SaveBestModel>({.path = folder / "best.pt"})},
      {"the average of the weights was not saved", make<ModelEma>({.path = folder / "ema.pt"})},
      {"the predictions were not saved",
       make<SavePredictions>({.path = folder / "predictions.pt", .every_n_epochs = 1})}};
  for (const auto& [message, writer] : writers) {
    std::unique_ptr<FileSizeLimit> full_disk;
    Toy toy({writer, std::make_shared<AtUpdate>(
                         1, [&](Trainer&) { full_disk = std::make_unique<FileSizeLimit>(16); })});
    EXPECT_EQ(toy.trainer.train(epochs_of_two_updates(2)).num_epochs, 2);
    full_disk.reset();
    EXPECT_THAT(toy.trainer.lines, Contains(StartsWith("ERROR: " + message)));
    EXPECT_TRUE(folder.names().empty()) << message;
  }
}

TEST(FullDiskTest, TheEndOfARunReportsThatTheBestModelCouldNotBeSaved) {
  for (const int64_t full_after : {0, 1}) {
    const TemporaryFolder folder;
    std::unique_ptr<FileSizeLimit> full_disk;
    const auto limit = [&](Trainer&) { full_disk = std::make_unique<FileSizeLimit>(16); };
    Scored run(make<SaveBestModel>({.path = folder / "best.pt", .monitor = "score"}),
               {std::make_shared<AtUpdate>(full_after + 1, limit)});
    run.train({3.0, 1.0, 2.0});
    full_disk.reset();
    const std::string message = "ERROR: the model with the best score (1) could not be saved; ";
    const std::string what = full_after == 0 ? "the model keeps the weights of the last epoch."
                                             : "the best of the saved models is loaded.";
    EXPECT_THAT(run.toy.trainer.lines, Contains(message + what));
  }
}

}  // namespace
}  // namespace linkboy::testing::full_disk_test
