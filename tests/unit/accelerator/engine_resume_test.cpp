// An Engine whose loader is shorter than its size() or differs from that of the saved state.

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "linkboy/data/stream.hpp"
#include "linkboy/engine.hpp"
#include "support/expect_error.hpp"
#include "support/toy.hpp"

namespace linkboy::testing::engine_resume_test {
namespace {

constexpr int64_t kNumSamples = 16;

struct Loop {
  explicit Loop(std::shared_ptr<DataLoader> loader, EngineOptions options = {})
      : parts(initialize(model, toy_sgd(model), torch::nn::CrossEntropyLoss(), std::move(loader),
                         nullptr, nullptr, on_test_device(std::move(options)))) {}

  static EngineOptions on_test_device(EngineOptions options) {
    options.accelerator.device = test_device();
    return options;
  }

  /// @return The number of batches that it has trained on.
  int64_t train(int64_t num_batches = kNumSamples, int64_t first_batch = 0) {
    Engine& engine = parts.engine;
    engine.train();
    int64_t count = 0;
    for (const Batch& batch : parts.train_loader->batches(1, first_batch)) {
      engine.zero_grad();
      engine.backward(engine.criterion(engine(batch), batch.target()));
      engine.step();
      if (++count == num_batches) break;
    }
    return count;
  }

  torch::nn::Sequential model = toy_model();
  InitializedEngine parts;
};

std::shared_ptr<DataLoader> toy_loader(int64_t batch_size) {
  return make_data_loader(toy_data(kNumSamples),
                          {.batch_size = batch_size, .shuffle = true, .seed = 7});
}

TEST(EngineResumeTest, AnEpochShorterThanTheSizeOfTheLoaderIsAnError) {
  const auto loader = make_data_loader(
      [count = 0]() mutable -> std::optional<Batch> {
        if (count++ == 2) return std::nullopt;
        return Dataset(toy_data(4)).get_batch(std::vector<int64_t>{0, 1, 2, 3});
      },
      {.batches_per_epoch = 3}, {.batch_size = 4});
  Loop loop(loader);
  EXPECT_ERROR(loop.train(), "the training loader ended after 2 batches, but its size() is 3");
}

TEST(EngineResumeTest, AStateResumesWithOtherBatchSizesAfterItsLastSample) {
  Loop saved(toy_loader(2));
  saved.train(4);
  const StateDict state = saved.parts.engine.state_dict();

  Loop larger(toy_loader(4));
  larger.parts.engine.load_state_dict(state);
  EXPECT_EQ(larger.parts.engine.micro_step(), 2);
  EXPECT_EQ(larger.train(kNumSamples, larger.parts.engine.micro_step()), 2);
  EXPECT_EQ(larger.parts.engine.num_epochs(), 1);

  Loop unreachable(toy_loader(3));
  EXPECT_ERROR(unreachable.parts.engine.load_state_dict(state),
               "was saved in mid-epoch, after 8 samples, but batches of 3");
  Loop window(toy_loader(2), {.gradient_accumulation_steps = 3});
  EXPECT_ERROR(window.parts.engine.load_state_dict(state),
               "where no accumulation window of 3 batches ends");
}

TEST(EngineResumeTest, ARefusedLoaderStateChangesNothing) {
  Loop saved(toy_loader(2));
  saved.train();
  StateDict state = saved.parts.engine.state_dict();
  StateDict own = state.get_dict("engine");
  own.set("train_loader", StateDict{{"sead", 1}});
  state.set("engine", own);
  Loop other(toy_loader(2));
  const auto before = other.model->parameters()[0].detach().clone();
  const auto loader_before = other.parts.train_loader->state_dict().get_int("seed");
  EXPECT_ERROR(other.parts.engine.load_state_dict(state), "seed");
  EXPECT_TRUE(at::equal(before, other.model->parameters()[0]));
  EXPECT_TRUE(other.parts.engine.optimizer().state().empty());
  EXPECT_EQ(other.parts.train_loader->state_dict().get_int("seed"), loader_before);
  EXPECT_EQ(other.parts.engine.num_updates(), 0);
}

TEST(EngineResumeTest, ARefusedAcceleratorStateChangesNothing) {
  Loop saved(toy_loader(2));
  saved.train();
  StateDict state = saved.parts.engine.state_dict();
  StateDict own = state.get_dict("engine");
  own.set("accelerator", StateDict{{"sending_order", 1}});
  state.set("engine", own);
  Loop other(toy_loader(2));
  const auto before = other.model->parameters()[0].detach().clone();
  EXPECT_ERROR(other.parts.engine.load_state_dict(state), "sending_orders");
  EXPECT_TRUE(at::equal(before, other.model->parameters()[0]));
  EXPECT_TRUE(other.parts.engine.optimizer().state().empty());
  EXPECT_EQ(other.parts.engine.num_updates(), 0);
}

}  // namespace
}  // namespace linkboy::testing::engine_resume_test
