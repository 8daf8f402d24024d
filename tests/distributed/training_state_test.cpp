#include <fstream>

#include "distributed/ranks.hpp"
#include "linkboy/callbacks/metric_callback.hpp"
#include "linkboy/callbacks/save_training_state.hpp"
#include "linkboy/checkpoint/training_state_folders.hpp"
#include "linkboy/metrics/accuracy.hpp"
#include "support/at_update.hpp"
#include "support/expect_error.hpp"

namespace linkboy::testing::training_state_test {
namespace {

TEST(TrainingStateRanksTest, AllRanksCountAFailedSaveOfTheWriter) {
  const SharedFolder folder;
  const auto states = folder / "states";
  const auto save =
      make<SaveTrainingState>({.directory = states, .every_n_updates = 2, .save_at_end = false});
  const auto block = std::make_shared<AtUpdate>(1, [&](Trainer& trainer) {
    if (!trainer.accelerator().is_main_process()) return;
    std::filesystem::rename(states, folder / "away");
    std::ofstream(states) << "a file in its place";
  });
  RankToy toy(together(), {block, save});
  toy.trainer.train(run_of({.updates_per_epoch = 2}));
  EXPECT_EQ(save->num_failures(), 1);
}

TEST(TrainingStateRanksTest, EachRankContinuesItsOwnRandomNumbers) {
  const SharedFolder folder;
  RankToy toy(together());
  Accelerator& accelerator = toy.accelerator();
  accelerator.set_seed_per_process(7);
  toy.trainer.save_training_state(folder.path());
  const auto expected = torch::rand({3});
  accelerator.set_seed(0);
  accelerator.wait_for_everyone();
  toy.trainer.load_training_state(folder.path());
  EXPECT_TRUE(torch::equal(torch::rand({3}), expected));
}

TEST(TrainingStateRanksTest, EachRankContinuesItsShareOfTheTrainingMetrics) {
  const SharedFolder folder;
  const auto states = folder / "states";
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
    TrainOptions options = run_of({.updates_per_epoch = 6, .num_epochs = 2, .batch_size = 2});
    if (is_resumed) options.resume_from = states;
    toy.trainer.train(options);
    toy.accelerator().wait_for_everyone();
    return toy.trainer.run_history().get_metric_values("train_accuracy");
  };
  const auto expected = run({}, false);
  run(8, false);  // in the second epoch
  EXPECT_EQ(run({}, true), expected);
}

TEST(TrainingStateRanksTest, AFolderInUseIsAnErrorOnAllRanks) {
  const SharedFolder folder;
  const auto states = folder / "states";
  RankToy toy(together(), {make<SaveTrainingState>({.directory = states})});
  std::shared_ptr<void> lock;
  if (this_rank() == 0) lock = lock_training_states(states);
  const TrainOptions options{
      .train_dataset = toy_data(16), .num_epochs = 1, .per_device_batch_size = 4};
  EXPECT_ERROR(toy.trainer.train(options), "in use by another run");
  lock.reset();
  EXPECT_EQ(toy.trainer.train(options).num_epochs, 1);
}

}  // namespace
}  // namespace linkboy::testing::training_state_test
