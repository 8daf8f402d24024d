// Data loaders that callbacks replace at the start of a run.

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "linkboy/extend/limited_loader.hpp"
#include "support/calls.hpp"
#include "support/expect_error.hpp"
#include "support/toy.hpp"

namespace linkboy::testing::replaced_loader_test {
namespace {

TEST(ReplacedLoaderTest, TheRunTakesItsLengthFromTheNewTrainingLoader) {
  auto calls = std::make_shared<Calls>();
  calls->at_loaders = [](Trainer& trainer) {
    trainer.set_train_dataloader(std::make_shared<LimitedLoader>(trainer.train_dataloader(), 2));
    for (auto& set : trainer.evaluation_sets()) {
      set.loader = std::make_shared<LimitedLoader>(set.loader, 1);
    }
  };
  int num_eval_steps = 0;
  calls->at_eval_step_end = [&](Trainer&) { ++num_eval_steps; };
  Toy toy({calls});
  const auto result = toy.trainer.train({.train_dataset = toy_data(20),
                                         .num_epochs = 3,
                                         .eval_dataset = toy_data(20),
                                         .per_device_batch_size = 4});
  EXPECT_EQ(result.num_updates, 6);
  EXPECT_EQ(toy.trainer.run_config().num_updates_per_epoch, 2);
  EXPECT_EQ(num_eval_steps, 3);
}

TEST(ReplacedLoaderTest, RefusesToReplaceItInTheMiddleOfARun) {
  auto calls = std::make_shared<Calls>();
  calls->at_update_end = [](Trainer& trainer) {
    trainer.set_train_dataloader(trainer.train_dataloader());
  };
  Toy toy({calls});
  EXPECT_ERROR(toy.trainer.train({.train_dataset = toy_data(8), .num_epochs = 1}),
               "on_dataloaders_ready");
}

TEST(ReplacedLoaderTest, RefusesNull) {
  auto calls = std::make_shared<Calls>();
  calls->at_loaders = [](Trainer& trainer) { trainer.set_train_dataloader(nullptr); };
  Toy toy({calls});
  EXPECT_ERROR(toy.trainer.train({.train_dataset = toy_data(8), .num_epochs = 1}), "is null");
}

}  // namespace
}  // namespace linkboy::testing::replaced_loader_test
