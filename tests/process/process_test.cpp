// linkboy's effects on the process: none in a plain run; with some features, those that
// docs/what_linkboy_touches.md lists.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <csignal>
#include <functional>
#include <memory>
#include <set>
#include <string>
#include <thread>

#include "distributed/backends.hpp"
#include "linkboy/callbacks/profiler.hpp"
#include "linkboy/callbacks/stop_on_signal.hpp"
#include "linkboy/distributed/sync_batch_norm.hpp"
#include "linkboy/memory/activation_checkpoint.hpp"
#include "linkboy/profiling/flop_counter.hpp"
#include "linkboy/schedulers/cosine_scheduler.hpp"
#include "process/process_state.hpp"
#include "support/at_update.hpp"
#include "support/pretended_group.hpp"
#include "support/temporary_folder.hpp"
#include "support/toy.hpp"

namespace linkboy::testing::process_test {
namespace {

using Names = std::set<std::string>;
using ::testing::HasSubstr;
using ::testing::Not;

/// Returns the folder of the sources. The dispatcher lists the source file that registered a
/// kernel.
std::string source_folder() {
  const std::string here = __FILE__;
  return here.substr(0, here.rfind("tests/process/"));
}

/// Starts LibTorch's threads, which exist only after the first computation.
void warm_up_libtorch() {
  const auto x = torch::ones({512, 512}, torch::requires_grad());
  torch::mm(x, x).sum().backward();
}

void train(Trainer& trainer) {
  trainer.train({.train_dataset = toy_data(24), .num_epochs = 2, .eval_dataset = toy_data(8)});
}

TEST(PlainRunTest, StartsInTheSameStateAsALibTorchProgram) {
  EXPECT_EQ(&torch::autograd::Engine::get_default_engine(),
            &torch::autograd::Engine::get_base_engine());
  EXPECT_FALSE(at::hasCallbacks());
  // No static object of linkboy has registered a kernel, set a variable or drawn a random number.
  EXPECT_THAT(kernels_text(), Not(HasSubstr(source_folder())));
  EXPECT_EQ(environment_text(), first_environment_text());
  const at::Generator& generator = at::detail::getDefaultCPUGenerator();
  const auto fresh = at::detail::createCPUGenerator(generator.current_seed());
  EXPECT_TRUE(torch::equal(generator.get_state(), fresh.get_state()));
}

TEST(PlainRunTest, LeavesTheProcessUnchanged) {
  warm_up_libtorch();
  const auto model = toy_model();  // LibTorch draws the first weights
  const ProcessState before = process_state();
  ProcessState during;
  {
    QuietTrainer trainer(model, torch::nn::CrossEntropyLoss(), toy_sgd(model),
                         {.callbacks = default_callbacks({std::make_shared<AtUpdate>(
                              2, [&](Trainer&) { during = process_state(); })})});
    train(trainer);
  }
  EXPECT_EQ(changes(before, during), Names());
  EXPECT_EQ(changes(before, process_state()), Names());
}

// The following tests use features. They show that ProcessState detects each kind of change.

/// The changes during `use`, which calls its argument in the middle, and the changes after it.
struct Effects {
  explicit Effects(const std::function<void(const std::function<void()>&)>& use) {
    warm_up_libtorch();
    const ProcessState before = process_state();
    use([&] { during = changes(before, process_state()); });
    after = changes(before, process_state());
  }
  Names during;
  Names after;
};

TEST(FeaturesTest, ACheckpointReplacesTheEngineWhileItsFunctionRuns) {
  const Effects effects([](const auto& look) {
    auto x = torch::ones({3}, torch::requires_grad());
    auto y = checkpoint(
        [&](torch::Tensor input) {
          look();
          return input.sin().cos();
        },
        x);
    EXPECT_EQ(&torch::autograd::Engine::get_default_engine(),
              &torch::autograd::Engine::get_base_engine());
    y.sum().backward();
  });
  EXPECT_EQ(effects.during, Names{"engine"});
  EXPECT_EQ(effects.after, Names());
}

TEST(FeaturesTest, CheckpointsOfSeveralThreadsRestoreTheEngine) {
  const auto differentiate = [] {
    for (int i = 0; i < 500; ++i) {
      const auto x = torch::full({3}, 0.5, torch::requires_grad());
      checkpoint([](torch::Tensor input) { return input * input; }, x).sum().backward();
      ASSERT_TRUE(torch::equal(x.grad(), torch::ones({3})));
    }
  };
  {
    const std::jthread other(differentiate);
    differentiate();
  }
  EXPECT_EQ(&torch::autograd::Engine::get_default_engine(),
            &torch::autograd::Engine::get_base_engine());
}

TEST(FeaturesTest, SynchronisedBatchNormRegistersKernelsPermanently) {
  const Effects effects([](const auto& look) {
    Model model(torch::nn::BatchNorm1d(4));
    const auto handle = convert_sync_batchnorm(model, pretended_group(0, 2));
    look();
  });
  EXPECT_EQ(effects.during, Names{"kernels"});
  EXPECT_EQ(effects.after, Names{"kernels"});
  EXPECT_THAT(kernels_text(), HasSubstr(source_folder() + "src/distributed/sync_batch_norm.cpp"));
}

TEST(FeaturesTest, OneProcessRegistersNoKernels) {
  const Effects effects([](const auto& look) {
    Model model(torch::nn::BatchNorm1d(4));
    const auto handle = convert_sync_batchnorm(model, std::make_shared<ProcessGroup>());
    look();
  });
  EXPECT_EQ(effects.during, Names());
}

TEST(FeaturesTest, OperationsAreObservedWhileTheyAreCounted) {
  const Effects effects([](const auto& look) { record_layer_calls(look, {}); });
  EXPECT_EQ(effects.during, Names{"record functions"});
  EXPECT_EQ(effects.after, Names());
}

TEST(FeaturesTest, SignalsAreHandledDuringARunWithStopOnSignal) {
  const Effects effects([](const auto& look) {
    Toy toy({std::make_shared<StopOnSignal>(),
             std::make_shared<AtUpdate>(1, [&](Trainer&) { look(); })});
    train(toy.trainer);
  });
  EXPECT_EQ(effects.during, (Names{"generator", "signals"}));  // the toy draws its weights
  EXPECT_EQ(effects.after, Names{"generator"});
}

TEST(FeaturesTest, ASeedSetsLibTorchsGenerators) {
  const Effects effects([](const auto& look) {
    Accelerator({.device = test_device()}).set_seed(7);
    look();
  });
  EXPECT_EQ(effects.during, Names{"generator"});
}

TEST(FeaturesTest, DeterministicAlgorithmsStayEnabled) {
  ASSERT_EQ(std::getenv("CUBLAS_WORKSPACE_CONFIG"), nullptr);
  const Effects effects([](const auto& look) {
    const Accelerator accelerator({.device = test_device(), .deterministic = true});
    look();
  });
  EXPECT_EQ(effects.during, (Names{"environment", "settings of LibTorch"}));
  EXPECT_EQ(effects.after, effects.during);
  EXPECT_STREQ(std::getenv("CUBLAS_WORKSPACE_CONFIG"), ":4096:8");
}

TEST(FeaturesTest, NcclVariablesStaySet) {
  if (!has_nccl()) GTEST_SKIP() << "linkboy is built without NCCL";
  const Effects effects([](const auto& look) {
    choose_nccl_defaults();
    look();
  });
  EXPECT_EQ(effects.during, Names{"environment"});
}

TEST(FeaturesTest, WorkersOfALoaderAreThreadsWhileAnEpochRuns) {
  const Effects effects([](const auto& look) {
    const auto loader = make_data_loader(toy_data(64), {.batch_size = 2, .num_workers = 2});
    const auto batches = loader->iterate(0);
    look();
  });
  EXPECT_EQ(effects.during, Names{"threads"});
  EXPECT_EQ(effects.after, Names());
}

TEST(FeaturesTest, ATraceIsMadeByLibTorchsProfiler) {
  const TemporaryFolder folder;
  const Effects effects([&](const auto& look) {
    Toy toy({make<Profiler>({.directory = folder.path(),
                             .schedule = {.skip_first = 0, .wait = 0, .warmup = 0, .active = 3}}),
             std::make_shared<AtUpdate>(1, [&](Trainer&) { look(); })});
    train(toy.trainer);
  });
  EXPECT_TRUE(effects.during.contains("record functions"));
  EXPECT_FALSE(effects.after.contains("record functions"));
}

TEST(FeaturesTest, ChangesThatNoFeatureMakesAreDetected) {
  const Effects effects([](const auto& look) {
    const SingleThread one;
    const auto mask = ::umask(0);
    look();
    ::umask(mask);
  });
  EXPECT_EQ(effects.during, (Names{"number of threads", "umask"}));
  EXPECT_EQ(effects.after, Names());
}

}  // namespace
}  // namespace linkboy::testing::process_test
