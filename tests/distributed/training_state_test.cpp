#include <filesystem>
#include <fstream>

#include "distributed/ranks.hpp"
#include "linkboy/callbacks/metric_callback.hpp"
#include "linkboy/callbacks/save_training_state.hpp"
#include "linkboy/checkpoint/training_state_folders.hpp"
#include "linkboy/metrics/accuracy.hpp"
#include "support/at_update.hpp"
#include "support/expect_error.hpp"
#include "support/temporary_folder.hpp"

namespace linkboy::testing::training_state_test {
namespace {

TEST(TrainingStateRanksTest, AllRanksCountAFailedSaveOfTheWriter) {
  const TemporaryFolder own_folder;
  const std::filesystem::path states =
      Accelerator(together()).broadcast_bytes((own_folder / "states").string());
  const auto save =
      make<SaveTrainingState>({.directory = states, .every_n_updates = 2, .save_at_end = false});
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
  toy.trainer.accelerator().wait_for_everyone();  // before the folder is removed
}

TEST(TrainingStateRanksTest, EachRankContinuesItsOwnRandomNumbers) {
  const TemporaryFolder own_folder;
  RankToy toy(together());
  Accelerator& accelerator = toy.trainer.accelerator();
  const std::filesystem::path folder = accelerator.broadcast_bytes(own_folder.path().string());
  accelerator.set_seed_per_process(7);
  toy.trainer.save_training_state(folder);
  const auto expected = torch::rand({3});
  accelerator.set_seed(0);
  accelerator.wait_for_everyone();
  toy.trainer.load_training_state(folder);
  EXPECT_TRUE(torch::equal(torch::rand({3}), expected));
  accelerator.wait_for_everyone();  // before the folder is removed
}

TEST(TrainingStateRanksTest, EachRankContinuesItsShareOfTheTrainingMetrics) {
  const TemporaryFolder own_folder;
  const std::filesystem::path states =
      Accelerator(together()).broadcast_bytes((own_folder / "states").string());
  const auto run = [&](std::optional<int64_t> last_update, bool is_resumed) {
    CallbackList callbacks{make<MetricCallback>(
        MetricCollection{
            {"accuracy", std::make_shared<Accuracy>(AccuracyOptions{.num_classes = 3})}},
        {.measure_training = true})};
    if (last_update) {
      callbacks.push_back(stop_at(*last_update));
      callbacks.push_back(make<SaveTrainingState>({.directory = states}));
    }
    RankToy toy(together(), callbacks);
    const int64_t n = toy.trainer.accelerator().num_processes();
    TrainOptions options{
        .train_dataset = toy_data(2 * n * 6), .num_epochs = 2, .per_device_batch_size = 2};
    if (is_resumed) options.resume_from = states;
    toy.trainer.train(options);
    toy.trainer.accelerator().wait_for_everyone();
    return toy.trainer.run_history().get_metric_values("train_accuracy");
  };
  const auto expected = run({}, false);
  run(8, false);  // in the second epoch
  EXPECT_EQ(run({}, true), expected);
}

TEST(TrainingStateRanksTest, AFolderInUseIsAnErrorOnAllRanks) {
  const TemporaryFolder own_folder;
  const std::filesystem::path states =
      Accelerator(together()).broadcast_bytes((own_folder / "states").string());
  RankToy toy(together(), {make<SaveTrainingState>({.directory = states})});
  Accelerator& accelerator = toy.trainer.accelerator();
  std::shared_ptr<void> lock;
  if (accelerator.is_main_process()) lock = lock_training_states(states);
  const TrainOptions options{
      .train_dataset = toy_data(16), .num_epochs = 1, .per_device_batch_size = 4};
  EXPECT_ERROR(toy.trainer.train(options), "in use by another run");
  lock.reset();
  EXPECT_EQ(toy.trainer.train(options).num_epochs, 1);
  accelerator.wait_for_everyone();  // before the folder is removed
}

}  // namespace
}  // namespace linkboy::testing::training_state_test
