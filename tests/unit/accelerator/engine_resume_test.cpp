// An Engine whose loader is shorter than its size() or differs from that of the saved state.

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "linkboy/data/stream.hpp"
#include "support/expect_error.hpp"
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

  Loop unreachable(3);
  EXPECT_ERROR(unreachable.engine.load_state_dict(state),
               "was saved in mid-epoch, after 8 samples, but batches of 3");
  Loop window(2, {.gradient_accumulation_steps = 3});
  EXPECT_ERROR(window.engine.load_state_dict(state),
               "where no accumulation window of 3 batches ends");
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
    const auto seed = other.parts.train_loader->state_dict().get_int("seed");
    EXPECT_ERROR(other.engine.load_state_dict(state), message);
    EXPECT_TRUE(bit_equal(before, other.model->parameters()));
    EXPECT_TRUE(other.engine.optimizer().state().empty());
    EXPECT_EQ(other.parts.train_loader->state_dict().get_int("seed"), seed);
    EXPECT_EQ(other.engine.num_updates(), 0);
  }
}

}  // namespace
}  // namespace linkboy::testing::engine_resume_test
