// The values that EventStorage keeps for each update.

#include "linkboy/callbacks/event_storage.hpp"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "linkboy/callbacks/lambda_callback.hpp"
#include "linkboy/schedulers/curves.hpp"
#include "support/expect_error.hpp"
#include "support/keep_losses.hpp"
#include "support/saved_states.hpp"
#include "support/skipping_trainer.hpp"
#include "support/temporary_folder.hpp"

namespace linkboy::testing::event_storage_test {
namespace {

TrainOptions toy_options(int64_t num_epochs = 1) {
  return {.train_dataset = toy_data(12),
          .per_device_batch_size = 2,
          .train_dataloader_options = {.shuffle = false},
          .num_epochs = num_epochs,
          .gradient_accumulation_steps = 2,
          .create_scheduler_fn = step_decay({.step_size = 1, .gamma = 0.5})};
}

using Numbers = std::vector<double>;

Numbers numbers(const at::Tensor& tensor) {
  const at::Tensor values = tensor.to(at::kDouble).contiguous();
  return {values.data_ptr<double>(), values.data_ptr<double>() + values.numel()};
}

/// Returns the updates of the losses.
Numbers updates_of(const EventStorage& storage, const char* name = "train_loss") {
  return numbers(storage.updates(name, 100));
}

TEST(EventStorageTest, KeepsTheLossAndTheLearningRateOfEachUpdate) {
  const auto storage = make<EventStorage>();
  const auto losses = std::make_shared<KeepLosses>();
  Toy toy({storage, losses});
  toy.train(toy_options());
  EXPECT_EQ(storage->names(), (std::vector<std::string>{"learning_rate", "train_loss"}));
  EXPECT_EQ(numbers(storage->values("learning_rate", 9)), (Numbers{0.1, 0.05, 0.025}));
  EXPECT_EQ(numbers(storage->updates("train_loss", 2)), (Numbers{2, 3}));
  const auto steps = losses->losses;
  ASSERT_EQ(steps.size(), 6U);
  EXPECT_NEAR(storage->latest("train_loss"), (steps[4] + steps[5]) / 2, 1e-6);
  EXPECT_NEAR(storage->values("train_loss", 3).mean().item<double>(),
              (steps[0] + steps[1] + steps[2] + steps[3] + steps[4] + steps[5]) / 6, 1e-6);
}

TEST(EventStorageTest, AcceptsValuesFromOtherCallbacks) {
  const auto storage = make<EventStorage>();
  Toy toy({storage, make<LambdaCallback>({.on_train_update_end = [&](Trainer& trainer) {
             const auto found = trainer.callback_handler().find<EventStorage>();
             found->put_scalar("number", static_cast<double>(trainer.num_updates()));
             found->put_scalar("tensor", torch::full({1}, 0.5, test_device()));
           }})});
  toy.train(toy_options());
  EXPECT_TRUE(storage->contains("number"));
  EXPECT_EQ(numbers(storage->values("number", 3)), (Numbers{1, 2, 3}));
  EXPECT_EQ(numbers(storage->updates("tensor", 3)), (Numbers{1, 2, 3}));
  EXPECT_EQ(storage->latest("tensor"), 0.5);
}

TEST(EventStorageTest, SkippedUpdatesHaveTheNumberOfTheNextUpdate) {
  const TemporaryFolder folder;
  const auto storage = make<EventStorage>();
  ToyOf<SkippingTrainer> toy({storage, saving_in(folder / "states")});
  toy.trainer.skipped_steps = {2, 3, 6};
  toy.train(toy_options(2));
  EXPECT_EQ(updates_of(*storage, "learning_rate"), (Numbers{1, 2, 2, 2, 3, 4}));
  EXPECT_EQ(updates_of(*storage), (Numbers{1, 2, 2, 2, 3, 4}));
  const auto resumed = make<EventStorage>();
  Toy second({resumed});
  second.train(resumed_from(folder / "states" / "latest", toy_options(3)));
  EXPECT_EQ(updates_of(*resumed), (Numbers{1, 2, 2, 2, 3, 4, 4, 5, 6}));
}

TEST(EventStorageTest, KeepsOnlyTheValuesOfItsWindow) {
  const auto storage = make<EventStorage>({.window = 2});
  Toy(CallbackList{storage}).train(toy_options());
  EXPECT_EQ(storage->values("train_loss", 100).numel(), 2);
  EXPECT_EQ(updates_of(*storage), (Numbers{2, 3}));
}

TEST(EventStorageTest, AFurtherRunStartsEmpty) {
  const auto storage = make<EventStorage>();
  Toy toy({storage});
  toy.train(toy_options());
  toy.train(toy_options());
  EXPECT_EQ(updates_of(*storage), (Numbers{1, 2, 3}));
}

TEST(EventStorageTest, AResumedRunContinuesWithTheSavedValues) {
  const TemporaryFolder folder;
  const auto whole = make<EventStorage>();
  Toy(CallbackList{whole}).train(toy_options(2));
  Toy first({make<EventStorage>(), saving_in(folder / "states")});
  first.train(toy_options(1));
  const auto resumed = make<EventStorage>();
  Toy second({resumed});
  second.train(resumed_from(folder / "states" / "latest", toy_options(2)));
  for (const std::string& name : whole->names()) {
    EXPECT_EQ(numbers(resumed->values(name, 100)), numbers(whole->values(name, 100))) << name;
    EXPECT_EQ(numbers(resumed->updates(name, 100)), numbers(whole->updates(name, 100))) << name;
  }
}

TEST(EventStorageTest, AnUnknownNameIsAnErrorThatListsTheNames) {
  const auto storage = make<EventStorage>();
  EXPECT_ERROR(storage->latest("other"), "no values of \"other\"; it has no values yet.");
  storage->put_scalar("own", 1.0);
  EXPECT_ERROR(storage->latest("other"), "no values of \"other\"; it has values of: own.");
  EXPECT_ERROR(storage->values("own", 0), "the number of values of \"own\" is 0");
  EXPECT_ERROR(storage->updates("own", -1), "the number of values of \"own\" is -1");
  EXPECT_THROW(make<EventStorage>({.window = 0}), OptionError);
}

TEST(EventStorageTest, ARunResumedFromAStateWithoutItsValuesStartsEmptyAndKeepsTheUpdateNumbers) {
  const TemporaryFolder folder;
  Toy plain({saving_in(folder / "states")});
  plain.train(toy_options());
  const auto storage = make<EventStorage>();
  Toy toy({storage});
  toy.train(toy_options());  // leaves values behind
  toy.trainer.train(resumed_from(folder / "states" / "latest", toy_options(2)));
  EXPECT_EQ(updates_of(*storage), (Numbers{4, 5, 6}));
}

TEST(EventStorageTest, AStateWithOtherShapesIsRefused) {
  const auto storage = make<EventStorage>();
  storage->put_scalar("own", 1.0);
  StateDict scalars;
  scalars.set("own", StateDict{{"updates", torch::zeros({2}, torch::kLong)},
                               {"values", torch::zeros({3}, torch::kDouble)}});
  StateDict state{{"num_updates", int64_t{3}}};
  state.set("scalars", scalars);
  EXPECT_ERROR(storage->load_rank_state_dict(state), "of the same length");
  EXPECT_EQ(storage->latest("own"), 1.0);
}

}  // namespace
}  // namespace linkboy::testing::event_storage_test
