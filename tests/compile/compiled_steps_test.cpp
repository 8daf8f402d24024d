// Steps that LibTorch's compiler has compiled. interpreted_steps_test.cpp has all that needs no
// compiler.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "compile/compiled_run.hpp"
#include "linkboy/checkpoint/checkpoint.hpp"
#include "support/at_update.hpp"
#include "support/environment_variable.hpp"
#include "support/expect_error.hpp"

namespace linkboy::testing::compiled_steps_test {
namespace {

using ::testing::Contains;
using ::testing::HasSubstr;

/// A net with dropout, batch norm and an unused layer.
struct Net : torch::nn::Module {
  Net() {
    torch::manual_seed(5);
    layers = register_module(
        "layers",
        // A bias before a batch norm has no gradient but rounding errors, which AdamW amplifies.
        torch::nn::Sequential(torch::nn::Linear(torch::nn::LinearOptions(4, 6).bias(false)),
                              torch::nn::BatchNorm1d(6), torch::nn::ReLU(), torch::nn::Dropout(0.3),
                              torch::nn::Linear(6, 3)));
    unused = register_module("unused", torch::nn::Linear(2, 2));
  }
  torch::Tensor forward(const torch::Tensor& x) { return layers->forward(x); }

  torch::nn::Sequential layers{nullptr};
  torch::nn::Linear unused{nullptr};
};

struct NetRun : CompiledRun {
  explicit NetRun(std::shared_ptr<Net> of = std::make_shared<Net>(),
                  Precision precision = Precision::fp32)
      : CompiledRun(of, torch::nn::CrossEntropyLoss(),
                    std::make_shared<torch::optim::AdamW>(of->parameters(), 0.05), precision),
        net(std::move(of)) {}

  std::shared_ptr<Net> net;
};

/// Three epochs of 8 batches, of which the last has three samples.
TrainOptions options_of_run() {
  return {.train_dataset = toy_data(31), .per_device_batch_size = 4, .num_epochs = 3};
}

/// Trains with both modes and expects the same losses and weights but for the last bits.
void expect_results_of_eager(const TrainOptions& options, Precision precision = Precision::fp32,
                             double tolerance = 1e-5) {
  NetRun eager(std::make_shared<Net>(), precision), compiled(std::make_shared<Net>(), precision);
  eager.train(ExecutionMode::eager, options);
  compiled.train(ExecutionMode::compiled, options);
  EXPECT_LE(largest_difference(compiled.losses(), eager.losses()), tolerance);
  const auto tensors = eager.trainer.model().named_tensors();
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    EXPECT_TRUE(torch::allclose(compiled.trainer.model().named_tensors()[i].second,
                                tensors[i].second, 100 * tolerance, 100 * tolerance))
        << tensors[i].first;
  }
  EXPECT_FALSE(compiled.net->unused->weight.grad().defined());
  for (const auto& metric : eager.trainer.run_history().get_metric_names()) {
    EXPECT_NEAR(compiled.trainer.run_history().get_latest_metric(metric),
                eager.trainer.run_history().get_latest_metric(metric), 100 * tolerance)
        << metric;
  }
}

TEST(CompiledStepsTest, DropoutBatchNormAndTheOddBatchHaveTheResultsOfEagerSteps) {
  TrainOptions options = options_of_run();
  options.eval_dataset = toy_data(10);
  expect_results_of_eager(options);
}

TEST(CompiledStepsTest, Bf16HasTheResultsOfEagerSteps) {
  expect_results_of_eager(options_of_run(), Precision::bf16, 0.02);
}

TEST(CompiledStepsTest, AResumedRunIsBitIdenticalToAWholeOne) {
  const TemporaryFolder folder;
  TrainOptions options = options_of_run();
  NetRun whole;
  whole.train(ExecutionMode::compiled, options);

  for (const int64_t update : {1, 11}) {
    SCOPED_TRACE(update);
    NetRun stopped, resumed;
    stopped.trainer.callback_handler().add(
        std::make_shared<AtUpdate>(update, [&](Trainer& trainer) {
          trainer.save_training_state(folder / "state");
          trainer.request_stop();
        }));
    stopped.train(ExecutionMode::compiled, options);
    options.resume_from = folder / "state";
    resumed.train(ExecutionMode::compiled, options);
    options.resume_from.reset();
    EXPECT_EQ(resumed.trainer.num_updates(), whole.trainer.num_updates());
    EXPECT_TRUE(bit_equal(resumed.net->parameters(), whole.net->parameters()));
    EXPECT_TRUE(bit_equal(resumed.net->buffers(), whole.net->buffers()));
    std::filesystem::remove_all(folder / "state");
  }
}

TEST(CompiledStepsTest, WithoutACompilerARunTrainsEagerly) {
  const TemporaryFolder cache;
  NetRun eager, compiled;
  TrainOptions options = options_of_run();
  eager.train(ExecutionMode::eager, options);
  const EnvironmentVariable none("CXX", "/nonexistent/c++");
  options.execution_mode = ExecutionMode::compiled;
  options.create_step_executor_fn = compiled_steps({.cache = cache.path()});
  torch::manual_seed(7);
  compiled.trainer.train(options);
  EXPECT_TRUE(bit_equal(compiled.net->parameters(), eager.net->parameters()));
  EXPECT_THAT(compiled.trainer.lines, Contains(HasSubstr("no C++ compiler was found")));
}

}  // namespace
}  // namespace linkboy::testing::compiled_steps_test
