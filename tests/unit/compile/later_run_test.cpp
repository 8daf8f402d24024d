// A run of a Trainer that has compiled its steps in an earlier one.

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "support/interpreted_steps.hpp"

namespace linkboy::testing::later_run_test {
namespace {

TEST(LaterRunTest, TakesTheStepsOverUnlessItDoesOtherWork) {
  const auto double_loss = [](Trainer& trainer, const Batch& batch) {
    StepOutput output = base(trainer, batch);
    output.loss = output.loss * 2;
    return output;
  };
  StepRun eager, compiled, other;
  for (StepRun* run : {&eager, &compiled}) {
    const CreateStepExecutorFn executor = run == &compiled ? interpreted_steps() : nullptr;
    run->train_with(executor);
    run->trainer.num_calls = 0;
    run->train_with(executor);
    // The compiled run records once per epoch and size.
    EXPECT_EQ(run->trainer.num_calls, executor ? 2 * 2 : 2 * 8);
    run->trainer.step = double_loss;
    run->train_with(executor);
    if (executor) {
      other.train_with(executor);
    }
  }
  EXPECT_EQ(compiled.losses->losses, eager.losses->losses);
  EXPECT_TRUE(bit_equal(compiled.model->parameters(), eager.model->parameters()));
  StepRun other_eager;
  other_eager.train_with({});
  EXPECT_TRUE(bit_equal(other.model->parameters(), other_eager.model->parameters()));
}

TEST(LaterRunTest, CompilesAgainIfOnlyItsSecondEpochDoesOtherWork) {
  StepRun eager, compiled;
  for (StepRun* run : {&eager, &compiled}) {
    int64_t num_epochs = 0;
    run->on(Event::train_epoch_start, [&](Trainer&) { ++num_epochs; });
    run->trainer.step = [&](Trainer& trainer, const Batch& batch) {
      StepOutput output = base(trainer, batch);
      if (num_epochs == 4) output.loss = output.loss * 2;
      return output;
    };
    const CreateStepExecutorFn executor = run == &compiled ? interpreted_steps() : nullptr;
    for (int i = 0; i < 2; ++i) run->train_with(executor);
    run->trainer.step = nullptr;
    EXPECT_EQ(num_epochs, 4);
  }
  EXPECT_EQ(compiled.losses->losses, eager.losses->losses);
  EXPECT_TRUE(bit_equal(compiled.model->parameters(), eager.model->parameters()));
}

TEST(LaterRunTest, HasTheResultsOfEagerStepsWithAnyOtherWork) {
  const auto read_host = [](double number) -> ForwardFn {
    return [number](Trainer& trainer, const Batch& batch) {
      const at::Tensor scale = torch::ones({1});
      if (number > 0) scale.data_ptr<float>()[0] = static_cast<float>(number);
      StepOutput output = base(trainer, batch);
      output.loss = (output.loss * scale).sum();
      return output;
    };
  };
  const auto train_tower = [](std::size_t trained) -> ForwardFn {
    return [trained](Trainer& trainer, const Batch& batch) {
      StepOutput output = base(trainer, batch);
      output.loss = torch::zeros({});
      for (const std::size_t tower : {0, 2}) {
        const at::Tensor weight = trainer.model().parameters()[tower];
        output.loss = output.loss + [&] {
          const at::AutoGradMode with_gradient(tower == trained);
          return batch.input().mm(weight).mean();
        }();
      }
      return output;
    };
  };
  const auto scale_odd_batch = [](double factor) -> ForwardFn {
    return [factor](Trainer& trainer, const Batch& batch) {
      StepOutput output = base(trainer, batch);
      if (batch.size() != 4) output.loss = output.loss * factor;
      return output;
    };
  };
  const std::vector<std::pair<ForwardFn, ForwardFn>> works = {{read_host(0), read_host(2)},
                                                              {train_tower(0), train_tower(2)},
                                                              {{}, scale_odd_batch(3)},
                                                              {scale_odd_batch(3), {}}};
  for (const auto& [first, second] : works) {
    SCOPED_TRACE(&first - &works.front().first);
    const auto net = [] {
      torch::manual_seed(3);
      return torch::nn::Sequential(torch::nn::Linear(4, 4), torch::nn::Linear(4, 4));
    };
    StepRun eager(first, net()), compiled(first, net());
    for (StepRun* run : {&eager, &compiled}) {
      const CreateStepExecutorFn executor = run == &compiled ? interpreted_steps({}) : nullptr;
      run->train_with(executor);
      run->trainer.step = second;
      run->train_with(executor);
    }
    EXPECT_EQ(compiled.losses->losses, eager.losses->losses);
    EXPECT_TRUE(bit_equal(compiled.model->parameters(), eager.model->parameters()));
  }
}

TEST(LaterRunTest, CompilesForOtherSizesOfBatchesAsAFirstRunDoes) {
  // The mean over all pairs makes a program for one size.
  const ForwardFn of_one_size = [](Trainer& trainer, const Batch& batch) {
    StepOutput output = base(trainer, batch);
    const at::Tensor scores = output.model_outputs.toTensor();
    output.loss = output.loss + scores.mm(scores.t()).mean() / 3;
    return output;
  };
  for (const ForwardFn& step : {ForwardFn(), of_one_size}) {
    for (const int64_t size : {1, 3, 8}) {
      const auto num_replays = [&](bool has_earlier_run) {
        StepRun run(step);
        const CreateStepExecutorFn executor = interpreted_steps();
        if (has_earlier_run) run.train_with(executor);
        const int64_t before = InterpretedPackage::num_runs();
        run.train_with(executor, {}, size);
        return InterpretedPackage::num_runs() - before;
      };
      EXPECT_EQ(num_replays(true), num_replays(false)) << size;
    }
  }
}

}  // namespace
}  // namespace linkboy::testing::later_run_test
