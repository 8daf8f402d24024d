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
#include "support/pretended_group.hpp"
#include "support/temporary_folder.hpp"
#include "support/toy.hpp"

namespace linkboy::testing::process_test {
namespace {

using Names = std::set<std::string>;
using ::testing::HasSubstr;
using ::testing::Not;

/// The state that all parts of a process share, as text by name.
using ProcessState = std::map<std::string, std::string>;

template <class... Values>
std::string text_of(const Values&... values) {
  std::ostringstream text;
  ((text << values << '\n'), ...);
  return text.str();
}

std::string sorted_lines(std::vector<std::string> lines) {
  std::sort(lines.begin(), lines.end());
  std::string text;
  for (const auto& line : lines) text += line + '\n';
  return text;
}

std::string environment_text() {
  std::vector<std::string> variables;
  for (char** variable = environ; *variable != nullptr; ++variable)
    variables.emplace_back(*variable);
  return sorted_lines(variables);
}

/// Returns the environment with which the process was started.
std::string first_environment_text() {
  std::ifstream file("/proc/self/environ");
  std::vector<std::string> variables;
  for (std::string variable; std::getline(file, variable, '\0');) variables.push_back(variable);
  return sorted_lines(variables);
}

std::string signals_text() {
  constexpr int kRestorer = 0x04000000;  // set by glibc in each action
  std::ostringstream text;
  for (int signal = 1; signal < NSIG; ++signal) {
    struct sigaction action {};
    if (sigaction(signal, nullptr, &action) != 0) continue;  // glibc reserves some
    text << signal << ' ' << reinterpret_cast<void*>(action.sa_handler) << ' '
         << (action.sa_flags & ~kRestorer) << '\n';
  }
  return text.str();
}

/// Returns the kernels of all operators that were registered individually, with their places in the
/// sources.
std::string kernels_text() {
  std::string text;
  auto& dispatcher = c10::Dispatcher::singleton();
  for (const auto& name : dispatcher.getAllOpNames()) {
    if (const auto op = dispatcher.findOp(name)) text += op->dumpState();
  }
  return text;
}

std::string entries_of(const char* folder) {
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    names.push_back(entry.path().filename().string());
  }
  return sorted_lines(names);
}

ProcessState process_state() {
  const auto mask = ::umask(0);
  ::umask(mask);
  const at::Tensor generator = at::detail::getDefaultCPUGenerator().get_state();
  const auto& context = at::globalContext();
  return {
      {"engine", text_of(&torch::autograd::Engine::get_default_engine())},
      {"kernels", kernels_text()},
      {"environment", environment_text()},
      {"signals", signals_text()},
      {"generator", text_of(generator.view(torch::kLong))},
      {"record functions", text_of(at::hasGlobalCallbacks(), at::hasThreadLocalCallbacks())},
      {"number of threads", text_of(at::get_num_threads(), at::get_num_interop_threads())},
      {"threads", entries_of("/proc/self/task")},
      {"open files", entries_of("/proc/self/fd")},
      {"settings of LibTorch",
       text_of(context.deterministicAlgorithms(), context.deterministicCuDNN(),
               context.benchmarkCuDNN(), context.userEnabledCuDNN(), context.userEnabledMkldnn(),
               at::get_default_dtype(), c10::GradMode::is_enabled())},
      {"terminate and new handler", text_of(reinterpret_cast<void*>(std::get_terminate()),
                                            reinterpret_cast<void*>(std::get_new_handler()))},
      {"locale", std::setlocale(LC_ALL, nullptr)},
      {"umask", text_of(mask)},
      {"folder", std::filesystem::current_path().string()},
  };
}

/// Returns the names of the entries that differ.
std::set<std::string> changes(const ProcessState& before, const ProcessState& after) {
  std::set<std::string> names;
  for (const auto& [name, text] : before) {
    if (after.at(name) != text) names.insert(name);
  }
  return names;
}

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
       [](const Look& look) { record_layer_calls(look, {}); },
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
