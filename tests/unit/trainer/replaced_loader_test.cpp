// Data loaders that callbacks replace at the start of a run.

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "linkboy/callbacks/lambda_callback.hpp"
#include "linkboy/extend/limited_loader.hpp"
#include "support/expect_error.hpp"
#include "support/toy.hpp"

namespace linkboy::testing::replaced_loader_test {
namespace {

TEST(ReplacedLoaderTest, TheRunTakesItsLengthFromTheNewTrainingLoader) {
  int num_eval_steps = 0;
  Toy toy({make<LambdaCallback>({
      .on_dataloaders_ready =
          [](Trainer& trainer) {
            trainer.set_train_dataloader(
                std::make_shared<LimitedLoader>(trainer.train_dataloader(), 2));
            for (auto& set : trainer.evaluation_sets()) {
              set.loader = std::make_shared<LimitedLoader>(set.loader, 1);
            }
          },
      .on_eval_step_start = [&](Trainer&) { ++num_eval_steps; },
  })});
  const auto result = toy.train({.train_dataset = toy_data(20),
                                 .num_epochs = 3,
                                 .eval_dataset = toy_data(20),
                                 .per_device_batch_size = 4});
  EXPECT_EQ(result.num_updates, 6);
  EXPECT_EQ(toy.trainer.run_config().num_updates_per_epoch, 2);
  EXPECT_EQ(num_eval_steps, 3);
}

TEST(ReplacedLoaderTest, RefusesNullAndALoaderInTheMiddleOfARun) {
  Toy null({make<LambdaCallback>(
      {.on_dataloaders_ready = [](Trainer& trainer) { trainer.set_train_dataloader(nullptr); }})});
  EXPECT_ERROR(null.train(), "is null");
  Toy late({make<LambdaCallback>({.on_train_update_end = [](Trainer& trainer) {
    trainer.set_train_dataloader(trainer.train_dataloader());
  }})});
  EXPECT_ERROR(late.train(), "on_dataloaders_ready");
}

}  // namespace
}  // namespace linkboy::testing::replaced_loader_test
