// An Engine whose loader is shorter than its size() or differs from that of the saved state.

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

  Loop unreachable(3);
  EXPECT_ERROR(unreachable.engine.load_state_dict(state),
               "was saved in mid-epoch, after 8 samples, but batches of 3");
  Loop window(2, {.gradient_accumulation_steps = 3});
  EXPECT_ERROR(window.engine.load_state_dict(state),
               "where no accumulation window of 3 batches ends");
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
    const auto seed = other.parts.train_loader->state_dict().get_int("seed");
    EXPECT_ERROR(other.engine.load_state_dict(state), message);
    EXPECT_TRUE(bit_equal(before, other.model->parameters()));
    EXPECT_TRUE(other.engine.optimizer().state().empty());
    EXPECT_EQ(other.parts.train_loader->state_dict().get_int("seed"), seed);
    EXPECT_EQ(other.engine.num_updates(), 0);
  }
}

void run_micro_step(InitializedEngine& parts, const Batch& batch) {
  parts.engine.zero_grad();
  const at::Tensor output = parts.engine(batch);
  parts.engine.backward(parts.engine.criterion(output, batch.target()));
  parts.engine.step();
}

InitializedEngine two_epochs_of_five_batches(const torch::nn::Sequential& model) {
  return initialize(model, toy_sgd(model), torch::nn::CrossEntropyLoss(),
                    make_data_loader(toy_data(10), {.batch_size = 2, .shuffle = true, .seed = 3}),
                    nullptr, step_decay({.step_size = 3}),
                    {.num_epochs = 2, .gradient_accumulation_steps = 2});
}

/// Trains two epochs of 5 batches and calls `look` before or after each micro-step.
std::vector<at::Tensor> train_and(const std::function<void(InitializedEngine&)>& look,
                                  bool looks_before = false) {
  const auto model = toy_model();
  auto parts = two_epochs_of_five_batches(model);
  int64_t num_epochs = 0;
  look(parts);
  for (int64_t epoch = 1; parts.engine.has_updates_left() && epoch < 9; ++epoch) {
    parts.engine.train();
    for (const Batch& batch : parts.train_loader->batches(epoch)) {
      if (looks_before) look(parts);
      run_micro_step(parts, batch);
      if (!looks_before) look(parts);
    }
    EXPECT_EQ(parts.engine.num_epochs(), ++num_epochs);
    look(parts);
  }
  EXPECT_EQ(parts.engine.num_updates(), 6);
  return copies_of(model->parameters());
}

TEST(EngineResumeTest, ALookAtTheTrainingLoaderDoesNotMoveTheLoop) {
  const auto expected = train_and([](InitializedEngine&) {});
  std::vector<std::unique_ptr<BatchIterator>> kept;
  const std::vector<std::function<void(InitializedEngine&)>> looks{
      [](InitializedEngine& parts) { parts.train_loader->iterate(1)->next(); },
      [](InitializedEngine& parts) { parts.train_loader->iterate(1); },
      [](InitializedEngine& parts) {  // the training accuracy
        const torch::NoGradGuard no_grad;
        parts.engine.eval();
        for (const Batch& batch : parts.train_loader->batches(1)) parts.engine(batch);
        parts.engine.train();
      },
      [&](InitializedEngine& parts) {
        kept.push_back(parts.train_loader->iterate(1));
        kept.back()->next();
      }};
  for (std::size_t i = 0; i < looks.size(); ++i) {
    EXPECT_TRUE(bit_equal(train_and(looks[i]), expected)) << i;
    if (i + 1 == looks.size()) continue;  // which one is trained cannot be known then
    EXPECT_TRUE(bit_equal(train_and(looks[i], /*looks_before=*/true), expected)) << i;
  }
  // Also if it is the last to read before a step, because the loop has begun to train its batches.
  const auto look_later = [&](InitializedEngine& parts) {
    if (parts.engine.micro_step() > 0) looks.back()(parts);
  };
  EXPECT_TRUE(bit_equal(train_and(look_later, /*looks_before=*/true), expected));
}

TEST(EngineResumeTest, AStateCanBeLoadedWhileAnIterationIsInUse) {
  const TemporaryFolder folder;
  const auto model = toy_model();
  auto parts = two_epochs_of_five_batches(model);
  parts.engine.train();
  const auto left = parts.train_loader->iterate(1);
  for (int64_t k = 1; k <= 4; ++k) {
    run_micro_step(parts, *left->next());
    if (k == 2) write_checkpoint(folder / "two.pt", parts.engine.state_dict());
  }
  parts.engine.load_state_dict(read_checkpoint(folder / "two.pt"));
  for (const Batch& batch : parts.train_loader->batches(1, 2)) run_micro_step(parts, batch);
  for (const Batch& batch : parts.train_loader->batches(2)) run_micro_step(parts, batch);
  EXPECT_TRUE(bit_equal(copies_of(model->parameters()), train_and([](InitializedEngine&) {})));
}

TEST(EngineResumeTest, TheBatchesMayBeReadBeforeTheyAreTrained) {
  const auto expected = train_and([](InitializedEngine&) {});
  const auto model = toy_model();
  auto parts = two_epochs_of_five_batches(model);
  for (const int64_t epoch : {1, 2}) {
    std::vector<Batch> batches;
    for (const Batch& batch : parts.train_loader->batches(epoch)) batches.push_back(batch);
    for (const Batch& batch : batches) run_micro_step(parts, batch);
  }
  EXPECT_TRUE(bit_equal(copies_of(model->parameters()), expected));
}

TEST(EngineResumeTest, TheBatchesEndWithTheLastUpdate) {
  const auto model = toy_model();
  auto parts = initialize(model, toy_sgd(model), torch::nn::CrossEntropyLoss(),
                          make_data_loader(toy_data(10), {.batch_size = 1}), nullptr, {},
                          {.max_num_updates = 3, .gradient_accumulation_steps = 2});
  int64_t num_batches = 0;
  for (int64_t epoch = 1; parts.engine.has_updates_left(); ++epoch) {
    for (const Batch& batch : parts.train_loader->batches(epoch)) {
      run_micro_step(parts, batch);
      ++num_batches;
    }
  }
  EXPECT_EQ(num_batches, 6);
  const Batch batch = *parts.train_loader->iterate(1)->next();
  run_micro_step(parts, batch);
  EXPECT_ERROR(run_micro_step(parts, batch),
               "step was called after the last of 3 updates (max_num_updates)");
}

}  // namespace
}  // namespace linkboy::testing::engine_resume_test
