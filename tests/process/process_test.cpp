// linkboy's effects on the process: none in a plain run; with some features, those that
// docs/what_linkboy_touches.md lists.

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Context.h>
#include <ATen/Parallel.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/record_function.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/torch.h>
#include <unistd.h>

#include <clocale>
#include <csignal>
#include <fstream>
#include <thread>

#include "distributed/backends.hpp"
#include "linkboy/callbacks/profiler.hpp"
#include "linkboy/callbacks/stop_on_signal.hpp"
#include "linkboy/distributed/sync_batch_norm.hpp"
#include "linkboy/memory/activation_checkpoint.hpp"
#include "linkboy/profiling/flop_counter.hpp"
#include "support/at_update.hpp"
#include "support/fake_process_group.hpp"
#include "support/process_state.hpp"
#include "support/temporary_folder.hpp"
#include "support/toy.hpp"

namespace linkboy::testing::process_test {
namespace {

using Names = std::set<std::string>;
using process::changes;
using process::environment_text;
using process::first_environment_text;
using process::kernels_text;
using process::process_state;
using process::ProcessState;
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
  trainer.train({.train_dataset = toy_data(24), .eval_dataset = toy_data(8), .num_epochs = 2});
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
                         {.callbacks = {std::make_shared<AtUpdate>(
                              2, [&](Trainer&) { during = process_state(); })}});
    train(trainer);
  }
  EXPECT_EQ(changes(before, during), Names());
  EXPECT_EQ(changes(before, process_state()), Names());
}

// The following tests use features. They show that ProcessState detects each kind of change.

using Look = std::function<void()>;

struct Feature {
  std::string name;
  std::function<void(const Look&)> use;  // calls its argument in the middle
  Names during, after{};                 // the changes
};

TEST(FeaturesTest, ChangeOnlyWhatIsDocumented) {
  const auto convert_batch_norm = [](const std::shared_ptr<ProcessGroup>& group) {
    return [=](const Look& look) {
      Model model(torch::nn::BatchNorm1d(4));
      const auto handle = convert_sync_batchnorm(model, group);
      look();
    };
  };
  const auto look_in_a_run = [](const Look& look) {
    return std::make_shared<AtUpdate>(1, [&look](Trainer&) { look(); });
  };
  ASSERT_EQ(std::getenv("CUBLAS_WORKSPACE_CONFIG"), nullptr);
  std::vector<Feature> features{
      {"a checkpoint replaces the engine while its function runs",
       [](const Look& look) {
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
       },
       {"engine"}},
      {"one process registers no kernels",
       convert_batch_norm(std::make_shared<ProcessGroup>()),
       {}},
      {"synchronised batch norm registers kernels permanently",
       convert_batch_norm(pretended_group(0, 2)),
       {"kernels"},
       {"kernels"}},
      {"operations are observed while they are counted",
       [](const Look& look) { (void)record_layer_calls(look, {}); },
       {"record functions"}},
      {"signals are handled during a run with StopOnSignal",
       [&](const Look& look) {
         Toy toy({std::make_shared<StopOnSignal>(), look_in_a_run(look)});
         train(toy.trainer);
       },
       {"generator", "signals"},  // the toy draws its weights
       {"generator"}},
      {"a seed sets LibTorch's generators",
       [](const Look& look) {
         Accelerator({.device = test_device()}).set_seed(7);
         look();
       },
       {"generator"},
       {"generator"}},
      {"deterministic algorithms stay enabled",
       [](const Look& look) {
         const Accelerator accelerator({.device = test_device(), .deterministic = true});
         look();
       },
       {"environment", "settings of LibTorch"},
       {"environment", "settings of LibTorch"}},
      {"workers of a loader are threads while an epoch runs",
       [](const Look& look) {
         const auto loader = make_data_loader(toy_data(64), {.batch_size = 2, .num_workers = 2});
         const auto batches = loader->iterate(0);
         look();
       },
       {"threads"}},
      {"changes that no feature makes are detected",
       [](const Look& look) {
         const SingleThread one;
         const auto mask = ::umask(0);
         look();
         ::umask(mask);
       },
       {"number of threads", "umask"}}};
  if (has_nccl()) {
    features.push_back({"NCCL's variables stay set",
                        [](const Look& look) {
                          choose_nccl_defaults();
                          look();
                        },
                        {"environment"},
                        {"environment"}});
  }
  warm_up_libtorch();
  for (const auto& [name, use, during, after] : features) {
    SCOPED_TRACE(name);
    const ProcessState before = process_state();
    use([&] { EXPECT_EQ(changes(before, process_state()), during); });
    EXPECT_EQ(changes(before, process_state()), after);
  }
  EXPECT_THAT(kernels_text(), HasSubstr(source_folder() + "src/distributed/sync_batch_norm.cpp"));
  EXPECT_STREQ(std::getenv("CUBLAS_WORKSPACE_CONFIG"), ":4096:8");
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

TEST(FeaturesTest, ATraceIsMadeByLibTorchsProfiler) {
  const TemporaryFolder folder;
  Names during;
  const ProcessState before = process_state();
  {
    const auto look =
        std::make_shared<AtUpdate>(1, [&](Trainer&) { during = changes(before, process_state()); });
    Toy toy({make<Profiler>({.directory = folder.path(),
                             .schedule = {.skip_first = 0, .wait = 0, .warmup = 0, .active = 3}}),
             look});
    train(toy.trainer);
  }
  EXPECT_TRUE(during.contains("record functions"));
  EXPECT_FALSE(changes(before, process_state()).contains("record functions"));
}

}  // namespace
}  // namespace linkboy::testing::process_test
