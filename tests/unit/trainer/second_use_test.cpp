// Everything can be used twice: after any use of a Trainer, the next use gives what it gives in a
// fresh process, with a new Trainer that loads the first one's checkpoint.

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <torch/torch.h>
#include <unistd.h>

#include <cstdlib>
#include <iostream>

#include "support/environment_variable.hpp"
#include "support/process_state.hpp"
#include "support/run_folder.hpp"
#include "support/state_difference.hpp"
#include "unit/trainer/second_use.hpp"

namespace linkboy::testing::second_use_test {
namespace {

/// Performs the second use. Returns what it gives, in a form that another process can compare.
StateDict result_of_second(Program& program, const Use& use) {
  torch::manual_seed(5);
  program.trainer.lines.clear();
  const Outcome outcome = use.run(program);
  StateDict result = program.accelerator->optimizer_state_dict(*program.trainer.optimizer());
  result.set("text", outcome.text);
  result.set("tensors", outcome.tensors);
  result.set("lines", c10::Join("\n", program.trainer.lines));
  result.set("callbacks", c10::str(program.trainer.callback_handler().names()));
  // A checkpoint also contains the scheduler of the last run, which a new Trainer does not have.
  result.set("model", Model(program.model).state_dict().to_ivalue());
  if (GradScaler* scaler = program.accelerator->grad_scaler()) {
    result.set("scaler", scaler->state_dict().to_ivalue());
  }
  result.set("generator", at::detail::getDefaultCPUGenerator().get_state());
  return result;
}

/// Two uses, one after the other, and the folder of their files.
struct Pair {
  const Use& first;
  const Use& second;
  std::filesystem::path folder;
  Precision precision;

  std::string name() const { return c10::str(second.name, " after ", first.name); }

  void use_twice() const {
    Program program(folder, precision);
    first.run(program);
    program.trainer.save_checkpoint(folder / "carried.pt");
    if (GradScaler* scaler = program.accelerator->grad_scaler()) {
      write_checkpoint(folder / "scaler.pt", scaler->state_dict());  // not in the checkpoint
    }
    write_checkpoint(folder / "second.pt", result_of_second(program, second));
  }
  void use_once_from_checkpoint() const {
    Program program(folder, precision);
    program.trainer.load_checkpoint(folder / "carried.pt");
    if (GradScaler* scaler = program.accelerator->grad_scaler()) {
      scaler->load_state_dict(read_checkpoint(folder / "scaler.pt"));
    }
    write_checkpoint(folder / "expected.pt", result_of_second(program, second));
  }
  /// Returns how the second use differs from the same use in a fresh process.
  std::string difference() const {
    return state_difference(folder / "second.pt", folder / "expected.pt");
  }
};

std::vector<Pair> pairs_in(const std::filesystem::path& folder, Precision precision) {
  std::vector<Pair> pairs;
  pairs.reserve(uses().size() * uses().size());
  for (const Use& first : uses()) {
    for (const Use& second : uses()) {
      pairs.push_back({first, second, folder / std::to_string(pairs.size()), precision});
    }
  }
  return pairs;
}

struct SecondUseTest : ::testing::TestWithParam<Precision> {
  const SingleThread one_thread_;
};

constexpr const char* kFolder = "LINKBOY_TEST_PAIRS";

// Its own process performs the second use of each pair in a new child, in which nothing ran before.
TEST_P(SecondUseTest, DISABLED_SecondUsesInFreshProcesses) {
  int num_children = 0;
  for (const Pair& pair : pairs_in(std::getenv(kFolder), GetParam())) {
    const pid_t child = ::fork();
    ASSERT_NE(child, -1);
    if (child == 0) {
      try {
        pair.use_once_from_checkpoint();
      } catch (const std::exception& error) {
        std::cerr << pair.name() << ": " << error.what() << '\n';
      }
      std::_Exit(0);
    }
    if (++num_children < 4) continue;
    ::wait(nullptr);
    --num_children;
  }
  while (::wait(nullptr) > 0) {
  }
}

TEST_P(SecondUseTest, AnyUseAfterAnyOtherIsLikeThatOfAFreshProcess) {
  RunFolder folder;
  const auto pairs = pairs_in(folder.fresh(), GetParam());
  for (const Pair& pair : pairs) {
    SCOPED_TRACE(pair.name());
    std::filesystem::create_directory(pair.folder);
    EXPECT_NO_THROW(pair.use_twice());
  }
  const EnvironmentVariable variable(kFolder, folder.path().c_str());
  const auto& info = *::testing::UnitTest::GetInstance()->current_test_info();
  const std::string command = c10::str(
      std::filesystem::read_symlink("/proc/self/exe").string(),
      " --gtest_also_run_disabled_tests --gtest_brief=1 --gtest_filter=", info.test_suite_name(),
      ".DISABLED_SecondUsesInFreshProcesses/", enum_name(GetParam()));
  ASSERT_EQ(std::system(command.c_str()), 0);
  for (const Pair& pair : pairs) EXPECT_EQ(pair.difference().substr(0, 600), "") << pair.name();
}

// The settings of the process, its threads, signal handlers and open files.
TEST_P(SecondUseTest, NoUseChangesItsProcess) {
  RunFolder folder;
  Program warm_up(folder.fresh(), GetParam());  // starts LibTorch's threads
  warm_up.trainer.train(warm_up.options());
  for (const Use& use : uses()) {
    SCOPED_TRACE(use.name);
    const process::ProcessState before = process::process_state();
    {
      Program program(folder.fresh(), GetParam());
      use.run(program);
    }
    auto names = process::changes(before, process::process_state());
    names.erase("generator");  // models and dropout draw from it
    EXPECT_EQ(names, std::set<std::string>());
  }
}

INSTANTIATE_TEST_SUITE_P(Precisions, SecondUseTest,
                         ::testing::Values(Precision::fp32, Precision::fp16),
                         [](const auto& info) { return std::string(enum_name(info.param)); });

}  // namespace
}  // namespace linkboy::testing::second_use_test
