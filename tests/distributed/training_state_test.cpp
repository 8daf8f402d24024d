#include <filesystem>
#include <fstream>

#include "distributed/ranks.hpp"
#include "linkboy/callbacks/save_training_state.hpp"
#include "support/at_update.hpp"
#include "support/temporary_folder.hpp"

namespace linkboy::testing::training_state_test {
namespace {

TEST(TrainingStateRanksTest, AllRanksCountASaveThatFailsOnTheOneThatWrites) {
  const TemporaryFolder own_folder;
  const std::filesystem::path states =
      Accelerator(together()).broadcast_object((own_folder / "states").string());
  const auto save = std::make_shared<SaveTrainingState>(
      SaveTrainingStateOptions{.directory = states, .every_n_updates = 2, .at_end = false});
  const auto block = std::make_shared<AtUpdate>(1, [&](Trainer& trainer) {
    if (!trainer.accelerator().is_main_process()) return;
    std::filesystem::rename(states, own_folder / "away");
    std::ofstream(states) << "a file in its place";
  });
  RankToy toy(together(), {block, save});
  const int64_t n = toy.trainer.accelerator().num_processes();
  toy.trainer.train(
      {.train_dataset = toy_data(4 * n * 2), .num_epochs = 1, .per_device_batch_size = 4});
  EXPECT_EQ(save->num_failures(), 1);
  toy.trainer.accelerator().wait_for_everyone();  // before the folder goes
}

TEST(TrainingStateRanksTest, EachRankContinuesItsOwnRandomNumbers) {
  const TemporaryFolder own_folder;
  RankToy toy(together());
  Accelerator& accelerator = toy.trainer.accelerator();
  const std::filesystem::path folder = accelerator.broadcast_object(own_folder.path().string());
  accelerator.set_seed_per_process(7);
  toy.trainer.save_training_state(folder);
  const auto expected = torch::rand({3});
  accelerator.set_seed(0);
  accelerator.wait_for_everyone();
  toy.trainer.load_training_state(folder);
  EXPECT_TRUE(torch::equal(torch::rand({3}), expected));
  accelerator.wait_for_everyone();  // before the folder is removed
}

}  // namespace
}  // namespace linkboy::testing::training_state_test
