// Steps that LibTorch's compiler has compiled. interpreted_steps_test.cpp has all that needs no
// compiler.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <torch/torch.h>

#include <csignal>
#include <thread>

#include "compile/compiled_run.hpp"
#include "compile/package_cache.hpp"
#include "linkboy/checkpoint/checkpoint.hpp"
#include "support/at_update.hpp"
#include "support/environment_variable.hpp"
#include "support/expect_error.hpp"
#include "support/file_contents.hpp"
#include "support/python_peer.hpp"

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
  EXPECT_THAT(compiled.trainer.lines,
              Contains(HasSubstr("the C++ compiler \"/nonexistent/c++\" does not work")));
}

/// compile.py measures which library is faster; this script in place of Python answers for it.
void write_python(const std::filesystem::path& path, bool is_onednn_faster) {
  write_bytes(path,
              c10::str("#!/bin/sh\nscript=$(printf '%s' \"$3\" | sed 's/if is_onednn_faster()/if ",
                       is_onednn_faster ? "True" : "False", "/')\nshift 3\nexec '",
                       python_interpreter(), "' -I -c \"$script\" \"$@\"\n"));
  std::filesystem::permissions(path, std::filesystem::perms::owner_all);
}

TEST(CompiledStepsTest, LargeMatrixProductsHaveTheResultsOfEagerStepsInEachLibrary) {
  SKIP_WITHOUT_PYTHON();
  torch::manual_seed(2);
  TrainOptions options{
      .train_dataset = TensorDataset(torch::randn({256, 256}), torch::randint(128, {256})),
      .per_device_batch_size = 64,
      .num_epochs = 2};
  const auto train = [&](ExecutionMode mode, const std::filesystem::path& cache) {
    torch::manual_seed(3);
    const torch::nn::Sequential net(torch::nn::Linear(256, 512), torch::nn::ReLU(),
                                    torch::nn::Linear(512, 128));
    CompiledRun run(net, torch::nn::CrossEntropyLoss(),
                    std::make_shared<torch::optim::SGD>(net->parameters(), 0.1));
    options.execution_mode = mode;
    options.create_step_executor_fn =
        compiled_steps({.on_failure = CompileOptions::OnFailure::error, .cache = cache});
    run.trainer.train(options);
    return run.losses();
  };
  const std::vector<float> expected = train(ExecutionMode::eager, {});
  for (const bool uses_onednn : {true, false}) {
    SCOPED_TRACE(uses_onednn);
    const TemporaryFolder folder;
    write_python(folder / "python", uses_onednn);
    const EnvironmentVariable python("LINKBOY_PYTHON", (folder / "python").c_str());
    EXPECT_LE(largest_difference(train(ExecutionMode::compiled, folder / "cache"), expected), 1e-5);
    const std::filesystem::path package = *std::filesystem::directory_iterator(folder / "cache");
    EXPECT_EQ(read_bytes(package / "step.so").find("linear_pointwise") != std::string::npos,
              uses_onednn);
  }
}

TEST(CompiledStepsTest, AKilledProcessLeavesNothing) {
  SKIP_WITHOUT_PYTHON();
  const TemporaryFolder cache;
  const auto builds = [&] {
    std::vector<std::filesystem::path> paths;
    for (const auto& entry : std::filesystem::directory_iterator(cache.path())) {
      if (entry.is_directory()) paths.push_back(entry.path());
    }
    return paths;
  };
  const auto wait_until = [](const auto& condition) {
    const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(60);
    while (!condition() && std::chrono::steady_clock::now() < end) std::this_thread::yield();
    return condition();
  };
  const torch::Tensor x = torch::ones({2});
  const Program program({record({{"batch", "x", x}}, [&] { return std::vector{x.exp().sin()}; })},
                        {2});
  const pid_t process = ::fork();
  if (process == 0) {
    try {
      PackageCache(cache.path()).build(program, [](const std::string&) {});
    } catch (const std::exception&) {
    }
    ::_exit(0);
  }
  EXPECT_TRUE(wait_until([&] {
    const auto paths = builds();
    return !paths.empty() && exists(paths[0] / "inductor");
  }));
  ::kill(process, SIGKILL);
  ::waitpid(process, nullptr, 0);
  EXPECT_TRUE(wait_until([&] { return builds().empty(); }));
}

}  // namespace
}  // namespace linkboy::testing::compiled_steps_test
