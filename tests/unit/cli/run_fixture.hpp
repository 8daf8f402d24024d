#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <fstream>
#include <nlohmann/json.hpp>

#include "linkboy/checkpoint/checkpoint.hpp"
#include "linkboy/cli/run.hpp"
#include "support/temporary_folder.hpp"
#include "support/toy.hpp"

namespace linkboy::cli::testing {

using linkboy::testing::toy_data;

struct NetOptions {
  int64_t width = 5;
  LINKBOY_FIELDS(width);
};

struct DataOptions {
  int64_t num_samples = 12;
  LINKBOY_FIELDS(num_samples);
};

struct Outcome {
  int status = 0;
  std::string output;
  std::string errors;
};

/// Returns the weight of the first layer in a checkpoint.
inline at::Tensor first_weight(const StateDict& checkpoint) {
  return checkpoint.get_dict("model_state_dict").get_tensor("0.weight");
}

/// Expects that the configuration has these members, which are given as JSON.
inline void expect_members(const nlohmann::json& config, const std::string& members) {
  nlohmann::json expected = config;
  expected.merge_patch(nlohmann::json::parse(members));
  EXPECT_EQ(nlohmann::json::diff(config, expected), nlohmann::json::array()) << members;
}

/// Runs programs whose output goes to a temporary folder.
struct RunTest : ::testing::Test {
  Outcome run(std::vector<std::string> arguments, RunProgram program = {}) {
    program.loss_function = torch::nn::CrossEntropyLoss();
    program.defaults.accelerator.device = "cpu";
    program.defaults.train.num_epochs = 2;
    program.defaults.train.per_device_batch_size = 4;
    program.defaults.output_dir = folder / "output";
    std::vector<const char*> words{"/usr/bin/train"};
    for (const auto& argument : arguments) words.push_back(argument.c_str());
    ::testing::internal::CaptureStdout();
    ::testing::internal::CaptureStderr();
    Outcome outcome;
    outcome.status = cli::run(
        static_cast<int>(words.size()), words.data(),
        [](const NetOptions& options) {
          return torch::nn::Sequential(torch::nn::Linear(4, options.width), torch::nn::ReLU(),
                                       torch::nn::Linear(options.width, 3));
        },
        [](const DataOptions& options) {
          return RunData{.train_dataset = toy_data(options.num_samples),
                         .eval_dataset = toy_data(6),
                         .test_dataset = toy_data(9)};
        },
        std::move(program));
    outcome.output = ::testing::internal::GetCapturedStdout();
    outcome.errors = ::testing::internal::GetCapturedStderr();
    return outcome;
  }

  /// Runs a program that must succeed, and returns its output.
  std::string succeed(std::vector<std::string> arguments, RunProgram program = {}) {
    const Outcome outcome = run(std::move(arguments), std::move(program));
    EXPECT_EQ(outcome.status, 0) << outcome.errors;
    return outcome.output;
  }

  /// Expects that the program fails with this status and message.
  void fail(int status, std::vector<std::string> arguments, const std::string& message) {
    SCOPED_TRACE(::testing::PrintToString(arguments));
    const Outcome outcome = run(std::move(arguments));
    EXPECT_EQ(outcome.status, status) << message;
    EXPECT_THAT(outcome.errors, ::testing::HasSubstr(message));
  }

  /// Returns the configuration that `--print-config` prints. Checks that nothing is trained.
  nlohmann::json print_config(std::vector<std::string> arguments, RunProgram program = {}) {
    arguments.emplace_back("--print-config");
    const std::string output = succeed(std::move(arguments), std::move(program));
    EXPECT_FALSE(std::filesystem::exists(folder / "output"));
    return nlohmann::json::parse(output);
  }

  std::string write_config(const std::string& text) const {
    std::ofstream(folder / "run.json") << text;
    return (folder / "run.json").string();
  }

  std::filesystem::path checkpoint_path() const { return folder / "output" / "checkpoint.pt"; }
  StateDict checkpoint() const { return read_checkpoint(checkpoint_path()); }

  /// Moves the checkpoint out of the way of the next run and returns its new path.
  std::string moved_checkpoint() const {
    const std::filesystem::path path = folder / "first.pt";
    std::filesystem::rename(checkpoint_path(), path);
    return path.string();
  }

  const TemporaryFolder folder;
};

}  // namespace linkboy::cli::testing
