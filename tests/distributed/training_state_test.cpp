#include <fstream>

#include "distributed/ranks.hpp"
#include "linkboy/callbacks/lambda_callback.hpp"
#include "linkboy/callbacks/metric_callback.hpp"
#include "linkboy/callbacks/save_training_state.hpp"
#include "linkboy/checkpoint/training_state_folders.hpp"
#include "linkboy/metrics/classification.hpp"
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

TEST(TrainingStateRanksTest, AdditionalRanksGetTheirOwnRandomNumbers) {
  const SharedFolder folder;
  if (this_rank() == 0) RankToy(alone()).trainer.save_training_state(folder.path());
  RankToy toy(together());
  Accelerator& accelerator = toy.accelerator();
  accelerator.wait_for_everyone();
  const auto draw = [&] {
    toy.trainer.load_training_state(folder.path());
    return torch::rand({3});
  };
  const torch::Tensor first = draw();
  const torch::Tensor all = accelerator.gather(first);
  EXPECT_EQ(std::get<0>(torch::_unique(all)).numel(), 3 * num_ranks()) << all;
  accelerator.set_seed_per_process(9);
  EXPECT_TRUE(torch::equal(draw(), first));
}

TEST(TrainingStateRanksTest, GradientsAreSentInTheOrderOfTheLoadedState) {
  const auto orders_of = [](Trainer& trainer) {
    return trainer.accelerator().state_dict().at("sending_orders");
  };
  const std::vector<int64_t> other{1, 0, 3, 2};
  c10::impl::GenericList others(c10::AnyType::get());
  others.push_back(other);
  for (const bool unfreezes : {false, true}) {
    SCOPED_TRACE(unfreezes);
    c10::IValue before_first_update;
    const auto load = make<LambdaCallback>(
        {.on_training_run_start =
             [&](Trainer& trainer) {
               before_first_update = orders_of(trainer);
               trainer.accelerator().load_state_dict({{"sending_orders", others}});
             },
         .on_train_epoch_start =
             [](Trainer& trainer) { trainer.model().parameters()[0].set_requires_grad(true); }});
    RankToy toy(together(), {load});
    toy.parameters()[0].set_requires_grad(!unfreezes);
    toy.trainer.train(run_of({}));
    const c10::IValue orders = orders_of(toy.trainer);
    EXPECT_EQ(orders.toListRef()[0].toIntVector(), other);
    toy.accelerator().load_state_dict({{"sending_orders", before_first_update}});
    EXPECT_EQ(c10::str(orders_of(toy.trainer)), c10::str(before_first_update));
  }
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
      .train_dataset = toy_data(16), .per_device_batch_size = 4, .num_epochs = 1};
  EXPECT_ERROR(toy.trainer.train(options), "in use by another run");
  lock.reset();
  EXPECT_EQ(toy.trainer.train(options).num_epochs, 1);
}

}  // namespace
}  // namespace linkboy::testing::training_state_test
