// ExecutionMode::compiled in combination with what a run can have.

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

TEST(CompiledStepsTest, AccumulationAndClippingHaveTheResultsOfEagerSteps) {
  TrainOptions options = options_of_run();
  options.gradient_accumulation_steps = 2;
  options.gradient_clip_norm = 0.1;
  expect_results_of_eager(options);
}

TEST(CompiledStepsTest, FrozenLayersAreCompiledAgainWhenTheyAreTrained) {
  TrainOptions options = options_of_run();
  NetRun eager, compiled;
  for (NetRun* run : {&eager, &compiled}) {
    const auto train_first_layer = [net = run->net](bool on) {
      for (auto& parameter : net->layers[0]->parameters()) parameter.requires_grad_(on);
    };
    train_first_layer(false);
    run->trainer.callback_handler().add(make<LambdaCallback>(
        {.on_training_run_epoch_end = [=](Trainer&) { train_first_layer(true); }}));
    run->train(run == &eager ? ExecutionMode::eager : ExecutionMode::compiled, options);
  }
  EXPECT_LE(largest_difference(compiled.losses(), eager.losses()), 1e-5);
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

/// Multiplies the loss by a number of the host.
struct WeightedTrainer : QuietTrainer {
  using QuietTrainer::QuietTrainer;
  StepOutput calculate_train_batch_loss(const Batch& batch) override {
    StepOutput output = QuietTrainer::calculate_train_batch_loss(batch);
    output.loss = output.loss * weight();
    return output;
  }
  std::function<double()> weight;
};

TEST(CompiledStepsTest, AStepThatDoesOtherWorkEachTimeRunsEagerlyAfterOneWarning) {
  const auto run = [](ExecutionMode mode, CompileOptions::OnFailure on_failure) {
    auto toy = std::make_unique<ToyOf<WeightedTrainer>>(CallbackList{}, 0.1,
                                                        AcceleratorOptions{.device = "cpu"});
    toy->trainer.weight = [trainer = &toy->trainer] {
      return 1.0 + static_cast<double>(trainer->num_updates());
    };
    toy->train({.train_dataset = toy_data(32),
                .per_device_batch_size = 8,
                .num_epochs = 2,
                .execution_mode = mode,
                .create_step_executor_fn =
                    compiled_steps({.on_failure = on_failure, .cache = test_cache()})});
    return toy;
  };
  const auto eager = run(ExecutionMode::eager, CompileOptions::OnFailure::error);
  const auto compiled = run(ExecutionMode::compiled, CompileOptions::OnFailure::eager);
  for (std::size_t i = 0; i < eager->model->parameters().size(); ++i) {
    EXPECT_TRUE(torch::allclose(compiled->model->parameters()[i], eager->model->parameters()[i],
                                1e-5, 1e-6));
  }
  const auto& lines = compiled->trainer.lines;
  const auto is_warning = [](const std::string& line) { return line.starts_with("WARNING"); };
  EXPECT_EQ(std::count_if(lines.begin(), lines.end(), is_warning), 1);
  EXPECT_THAT(lines, Contains(HasSubstr("it does other work each time (call")));
  EXPECT_ERROR(run(ExecutionMode::compiled, CompileOptions::OnFailure::error),
               "To continue eagerly, set CompileOptions::on_failure");
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

TEST(CompiledStepsTest, ABatchWithValuesRunsEagerly) {
  ToyOf<QuietTrainer> toy({}, 0.1, {.device = "cpu"});
  const Transform with_name = [](Batch batch, const TransformContext&) {
    batch.set_value("name", "file");
    return batch;
  };
  toy.train({.train_dataset = toy_data(8),
             .train_dataloader_options = {.transform = with_name},
             .execution_mode = ExecutionMode::compiled,
             .create_step_executor_fn = compiled_steps({.cache = test_cache()})});
  EXPECT_THAT(toy.trainer.lines, Contains(HasSubstr("a batch has the value \"name\"")));
}

}  // namespace
}  // namespace linkboy::testing::compiled_steps_test
