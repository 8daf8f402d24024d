// An Engine whose loader is shorter than its size() or differs from that of the saved state.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "linkboy/checkpoint/checkpoint.hpp"
#include "linkboy/data/stream.hpp"
#include "linkboy/schedulers/curves.hpp"
#include "support/expect_error.hpp"
#include "support/temporary_folder.hpp"
#include "toy_engine.hpp"

namespace linkboy::testing::engine_resume_test {
namespace {

/// An Engine whose loader gives 16 samples, or batches of its own.
struct Loop : ToyEngine {
  explicit Loop(std::shared_ptr<DataLoader> loader, EngineOptions options = {})
      : ToyEngine(std::move(options), {}, std::move(loader)) {}
  explicit Loop(int64_t batch_size, EngineOptions options = {})
      : Loop(shuffled_toy_loader(16, batch_size), std::move(options)) {}
};

TEST(EngineResumeTest, AnEpochShorterThanTheSizeOfTheLoaderIsAnError) {
  const auto loader = make_data_loader(
      [count = 0]() mutable -> std::optional<Batch> {
        if (count++ == 2) return std::nullopt;
        return Dataset(toy_data(4)).get_batch(std::vector<int64_t>{0, 1, 2, 3});
      },
      {.batches_per_epoch = 3}, {.batch_size = 4});
  Loop loop(loader);
  EXPECT_ERROR(loop.train_epoch(1),
               "the training loader ended after 2 batches, but its size() is 3");
}

TEST(EngineResumeTest, AStateResumesWithOtherBatchSizesAfterItsLastSample) {
  Loop saved(2);
  saved.train_epoch(1, 0, /*end=*/4);
  const StateDict state = saved.engine.state_dict();

  Loop larger(4);
  larger.engine.load_state_dict(state);
  EXPECT_EQ(larger.engine.micro_step(), 2);
  EXPECT_EQ(larger.train_epoch(1, larger.engine.micro_step()), 2);
  EXPECT_EQ(larger.engine.num_epochs(), 1);

  // Where no update ends, the loop begins after the last one before.
  const auto resume = [&](Loop loop, int64_t micro_step) {
    ::testing::internal::CaptureStdout();
    loop.engine.load_state_dict(state);
    EXPECT_THAT(::testing::internal::GetCapturedStdout(),
                ::testing::HasSubstr("The last 2 samples are trained a second time"));
    EXPECT_EQ(loop.engine.micro_step(), micro_step);
  };
  resume(Loop(3), 2);
  resume(Loop(2, {.gradient_accumulation_steps = 3}), 3);
}

TEST(EngineResumeTest, ALoopThatDoesNotContinueAtTheStateIsAnError) {
  Loop saved(2);
  saved.train_epoch(1);
  const StateDict after_epoch = saved.engine.state_dict();
  saved.train_epoch(2, 0, /*end=*/1);
  const StateDict within_epoch = saved.engine.state_dict();
  Loop resumed(2);
  resumed.engine.load_state_dict(after_epoch);
  EXPECT_ERROR(resumed.train_epoch(1),
               "the Engine's state continues at batch 0 of epoch 2, but the loop trains from batch "
               "0 of epoch 1. Begin the loop with epoch = engine.num_epochs() + 1");
  resumed.engine.load_state_dict(within_epoch);
  EXPECT_ERROR(resumed.train_epoch(2), "continues at batch 1 of epoch 2, but the loop trains from");
  resumed.engine.load_state_dict(within_epoch);
  resumed.train_epoch(2, resumed.engine.micro_step());
  EXPECT_EQ(resumed.engine.num_epochs(), 2);
}

TEST(EngineResumeTest, ALongerLoopContinuesIfTheScheduleAllowsIt) {
  ToyEngine saved;
  saved.train_epoch(1);
  const StateDict state = saved.engine.state_dict();
  ToyEngine longer({.num_epochs = 5});
  EXPECT_ERROR(longer.engine.load_state_dict(state),
               "or, in an Engine, with Scheduler::allow_changed_lengths");
  longer.engine.scheduler()->allow_changed_lengths(true);
  longer.engine.load_state_dict(state);
  EXPECT_EQ(longer.engine.scheduler()->num_updates(), saved.engine.num_updates());
  longer.train_epoch(2);
  EXPECT_TRUE(longer.engine.has_updates_left());
}

TEST(EngineResumeTest, ARefusedStateOfAPartChangesNothing) {
  Loop saved(2);
  saved.train_epoch(1);
  struct Case {
    const char* part;
    StateDict state;
    const char* message;
  };
  for (const auto& [part, part_state, message] :
       {Case{"train_loader", {{"sead", 1}}, "seed"},
        Case{"accelerator", {{"sending_order", 1}}, "sending_orders"}}) {
    SCOPED_TRACE(part);
    StateDict state = saved.engine.state_dict();
    StateDict own = state.get_dict("engine");
    own.set(part, part_state);
    state.set("engine", own);
    Loop other(2);
    const auto before = copies_of(other.model->parameters());
    const auto seed = other.parts.train_dataloader->state_dict().get_int("seed");
    EXPECT_ERROR(other.engine.load_state_dict(state), message);
    EXPECT_TRUE(bit_equal(before, other.model->parameters()));
    EXPECT_TRUE(other.engine.optimizer().state().empty());
    EXPECT_EQ(other.parts.train_dataloader->state_dict().get_int("seed"), seed);
    EXPECT_EQ(other.engine.num_updates(), 0);
  }
}

/// Two epochs of 5 batches with accumulation windows of 2 and 1 batches.
struct FiveBatches : ToyEngine {
  FiveBatches()
      : ToyEngine({.num_epochs = 2, .gradient_accumulation_steps = 2}, step_decay({.step_size = 3}),
                  shuffled_toy_loader(10, 2)) {}
  BatchRange batches(int64_t epoch, int64_t first = 0) {
    return parts.train_dataloader->batches(epoch, first);
  }
  std::unique_ptr<BatchIterator> iterate() { return parts.train_dataloader->iterate(1); }
};

/// Trains both epochs and calls `look` before or after each micro-step.
std::vector<at::Tensor> train_and(const std::function<void(FiveBatches&)>& look,
                                  bool looks_before = false) {
  FiveBatches toy;
  int64_t num_epochs = 0;
  look(toy);
  for (int64_t epoch = 1; toy.engine.has_updates_left() && epoch < 9; ++epoch) {
    for (const Batch& batch : toy.batches(epoch)) {
      if (looks_before) look(toy);
      toy.run_micro_step(batch);
      if (!looks_before) look(toy);
    }
    EXPECT_EQ(toy.engine.num_epochs(), ++num_epochs);
    look(toy);
  }
  EXPECT_EQ(toy.engine.num_updates(), 6);
  return copies_of(toy.model->parameters());
}

std::vector<at::Tensor> train_without_a_look() {
  return train_and([](FiveBatches&) {});
}

TEST(EngineResumeTest, ALookAtTheTrainingLoaderDoesNotMoveTheLoop) {
  const auto expected = train_without_a_look();
  std::vector<std::unique_ptr<BatchIterator>> kept;
  const std::vector<std::function<void(FiveBatches&)>> looks{
      [](FiveBatches& toy) { toy.iterate()->next(); }, [](FiveBatches& toy) { toy.iterate(); },
      [](FiveBatches& toy) {  // the training accuracy
        const torch::NoGradGuard no_grad;
        toy.engine.eval();
        for (const Batch& batch : toy.batches(1)) toy.engine(batch);
        toy.engine.train();
      },
      [&](FiveBatches& toy) {
        kept.push_back(toy.iterate());
        kept.back()->next();
      }};
  for (std::size_t i = 0; i < looks.size(); ++i) {
    EXPECT_TRUE(bit_equal(train_and(looks[i]), expected)) << i;
    if (i + 1 == looks.size()) continue;  // which one is trained cannot be known then
    EXPECT_TRUE(bit_equal(train_and(looks[i], /*looks_before=*/true), expected)) << i;
  }
  // Also if it is the last to read before a step, because the loop has begun to train its batches.
  const auto look_later = [&](FiveBatches& toy) {
    if (toy.engine.micro_step() > 0) looks.back()(toy);
  };
  EXPECT_TRUE(bit_equal(train_and(look_later, /*looks_before=*/true), expected));
}

TEST(EngineResumeTest, AStateCanBeLoadedWhileAnIterationIsInUse) {
  const TemporaryFolder folder;
  FiveBatches toy;
  const auto left = toy.iterate();
  for (int64_t k = 1; k <= 4; ++k) {
    toy.run_micro_step(*left->next());
    if (k == 2) write_checkpoint(folder / "two.pt", toy.engine.state_dict());
  }
  toy.engine.load_state_dict(read_checkpoint(folder / "two.pt"));
  toy.train_epoch(1, 2);
  toy.train_epoch(2);
  EXPECT_TRUE(bit_equal(toy.model->parameters(), train_without_a_look()));
}

TEST(EngineResumeTest, TheBatchesMayBeReadBeforeTheyAreTrained) {
  FiveBatches toy;
  for (const int64_t epoch : {1, 2}) {
    std::vector<Batch> batches;
    for (const Batch& batch : toy.batches(epoch)) batches.push_back(batch);
    for (const Batch& batch : batches) toy.run_micro_step(batch);
  }
  EXPECT_TRUE(bit_equal(toy.model->parameters(), train_without_a_look()));
}

TEST(EngineResumeTest, TheBatchesEndWithTheLastUpdate) {
  ToyEngine toy({.max_num_updates = 3, .gradient_accumulation_steps = 2}, {},
                make_data_loader(toy_data(10), {.batch_size = 1}));
  int64_t num_batches = 0;
  for (int64_t epoch = 1; toy.engine.has_updates_left(); ++epoch) {
    num_batches += toy.train_epoch(epoch);
  }
  EXPECT_EQ(num_batches, 6);
  const Batch batch = toy.first_batch();
  toy.run_micro_step(batch);
  EXPECT_ERROR(toy.run_micro_step(batch),
               "step was called after the last of 3 updates (max_num_updates)");
}

}  // namespace
}  // namespace linkboy::testing::engine_resume_test
