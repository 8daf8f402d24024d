#include "linkboy/callbacks/print_progress.hpp"

#include <gtest/gtest.h>

#include "support/given_scores.hpp"

namespace linkboy::testing::print_progress_test {
namespace {

TEST(PrintProgressTest, PrintsThePositionOfTheRun) {
  Toy toy({std::make_shared<PrintProgress>()});
  TrainOptions options = epochs_of_one_update(1);
  options.eval_dataset = toy_data(4);
  toy.trainer.train(options);
  toy.trainer.evaluate({.dataset = toy_data(4)});
  EXPECT_EQ(
      toy.trainer.lines,
      (std::vector<std::string>{"Starting training run", "Starting epoch 1", "Starting eval epoch",
                                "Finishing training run", "Starting evaluation run",
                                "Starting eval epoch", "Finishing evaluation run"}));
}

}  // namespace
}  // namespace linkboy::testing::print_progress_test
