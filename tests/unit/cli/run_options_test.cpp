// Tests of the configuration of programs that call `run`: files, the command line and errors.

#include <gmock/gmock.h>

#include <regex>
#include <sstream>

#include "run_fixture.hpp"

namespace linkboy::cli::run_options_test {
namespace {

using testing::expect_members;
using ::testing::HasSubstr;
using testing::Outcome;
using testing::RunTest;
using testing::toy_data;

TEST_F(RunTest, TheCommandLineOverridesTheFile) {
  const std::string path = write_config(
      R"({"optimizer": {"name": "sgd", "lr": 0.5, "momentum": 0.9}, "callbacks": ["model-ema"]})");
  expect_members(print_config({"--config", path, "--optimizer.lr", "0.25", "--model.width=9"}),
                 R"({"optimizer": {"lr": 0.25, "momentum": 0.9}, "model": {"width": 9}})");
  const auto config = print_config(
      {"--config", path, "--optimizer", "adamw:lr=0.1", "--callbacks", "time-limit:minutes=5"});
  expect_members(config, R"({"optimizer": {"name": "adamw", "betas": "0.9,0.999"}})");
  ASSERT_EQ(config["callbacks"].size(), 1U);
  EXPECT_EQ(config["callbacks"][0]["minutes"], 5);
}

TEST_F(RunTest, ShortNamesSetTheSameOptions) {
  const auto config = print_config({"--epochs", "7", "--batch-size", "3", "--lr", "0.125",
                                    "--precision", "bf16", "--workers", "2"});
  expect_members(config, R"({"train": {"num_epochs": 7, "per_device_batch_size": 3},
                             "optimizer": {"lr": 0.125}, "accelerator": {"precision": "bf16"},
                             "train_dataloader": {"num_workers": 2}})");
}

TEST_F(RunTest, TheEndOfANameIsEnoughIfItIsUnique) {
  const auto config =
      print_config({"--num-epochs", "7", "--zero_stage=1", "--optimizer", "sgd", "--momentum",
                    "0.5", "--distributed.timeout", "30s", "--keep-last", "none"});
  expect_members(config, R"({"train": {"num_epochs": 7}, "optimizer": {"momentum": 0.5},
                             "accelerator": {"distributed": {"zero_stage": 1, "timeout": "30s"}},
                             "states": {"keep_last": "none"}})");
  const std::string path = write_config(R"({"distributed": {"zero_stage": 2}})");
  expect_members(print_config({"--config", path}),
                 R"({"accelerator": {"distributed": {"zero_stage": 2}}})");
}

TEST_F(RunTest, ThePrintedConfigurationCanBeReadBack) {
  const auto config =
      print_config({"--scheduler", "multi-step:milestones=3,5,gamma=0.5", "--metrics",
                    "accuracy:num_classes=3", "--trackers", "csv:path=a.csv", "--callbacks",
                    "save-best-model", "--track_run.name", "0.10"});
  expect_members(config, R"({"scheduler": {"milestones": "3,5"}, "track_run": {"name": "0.10"}})");
  EXPECT_EQ(print_config({"--config", write_config(config.dump())}), config);
}

TEST_F(RunTest, UsageErrorsListTheAllowedNames) {
  fail(2, {"--train.num_epoch", "3"}, "Did you mean --train.num_epochs?");
  fail(2, {"--zero", "1"}, "Options that contain this name: --accelerator.distributed.zero_stage.");
  fail(2, {"--optimizer", "sgdm"}, "there is no optimizer \"sgdm\"; there are sgd, adam");
  fail(2, {"--optimizer", "sgd:rate=1"}, "lr, momentum, dampening, weight_decay, nesterov");
  fail(2, {"--optimizer.betas", "0.9,0.99", "--optimizer", "sgd"}, "betas");
  fail(2, {"--scheduler.gamma", "0.5"}, "--scheduler is none; set both");
  fail(2, {"--callbacks", "early-stoping"}, "there is no callback \"early-stoping\"");
  fail(2, {"--callbacks", "early-stopping:patience=x"}, "it must be an integer");
  fail(2, {"--callbacks", "early-stopping", "--callbacks", "early-stopping"}, "--callbacks");
  fail(2, {"--metrics", "accuracy"}, "num_classes is missing");
  fail(2, {"--trackers", "csv"}, "path is missing");
  fail(2, {"--config", write_config(R"({"trian": {"num_epochs": 1}})")},
       "'trian.num_epochs' is not an option of train. Did you mean train.num_epochs?");
  fail(2, {"--config", write_config(R"({"optimizer": {"lr": 1}})")}, "a member \"name\"");
  fail(2, {"--list", "nothing"},
       "it must be one of optimizer, scheduler, callbacks, metrics, trackers");
  fail(2, {"--shuffle", "true"},
       "--shuffle is ambiguous; it may be --train_dataloader.shuffle, "
       "--eval_dataloader.shuffle. Use the full name.");
  EXPECT_FALSE(std::filesystem::exists(folder / "output"));
}

TEST_F(RunTest, ErrorsThatDependOnTheModelAreUsageErrors) {
  fail(2, {"--optimizer", "sgd:lr=-1"}, "--optimizer: the optimizer's lr is -1; it must be");
  fail(2, {"--batch-size", "0"}, "per_device_batch_size is 0; it must be at least 1");
  fail(2, {"--scheduler", "step:step_size=2.5"}, "--scheduler: ");
  EXPECT_TRUE(std::filesystem::is_empty(folder / "output"));
}

TEST_F(RunTest, OptionsWithoutAnEffectAreUsageErrors) {
  fail(2, {"--keep-last", "3"}, "no training states are saved");
  fail(2, {"--num-threads", "-1"}, "--num_threads is -1; it must be at least 0");
  fail(2, {"--track_run.every_n_updates", "3"}, "there is no tracker");
  fail(2, {"--init-key", "net"}, "set it with --init_from FILE");
  fail(2, {"--init-from", "a", "--load-checkpoint", "b"}, "use only one of them");
  fail(2, {"--resume-from", "latest", "--load-checkpoint", "b"}, "use only one of them");
  fail(2, {"--log.file", "checkpoint.pt"}, "checkpoint.pt\" is the path of two outputs");
  const std::string path = (folder / "run.csv").string();
  fail(2, {"--trackers", "csv:path=" + path, "--trackers", "json-lines:path=" + path},
       "run.csv\" is the path of two outputs");
  EXPECT_FALSE(std::filesystem::exists(folder / "output"));
}

TEST_F(RunTest, ListsTheAvailableNames) {
  EXPECT_THAT(run({"--list", "optimizer"}).output, HasSubstr("momentum"));
  EXPECT_THAT(run({"--list", "metrics"}).output, HasSubstr("top_k"));
  EXPECT_THAT(run({"--list", "callbacks"}).output,
              HasSubstr("\nmodel-ema\n    decay=0.9999\n    warmup=true\n"));
  EXPECT_THAT(run({"--help"}).output, HasSubstr("--train.num_epochs"));
}

TEST_F(RunTest, HelpDescribesEveryOption) {
  // "  --name VALUE (=default) text"; after a long name, the text is on the next line.
  const std::regex option(R"(  (--\S+)( [^ (]+)?( \(=[^)]*\))?( +\S.*)?)");
  std::istringstream help(run({"--help"}).output);
  std::vector<std::string> names;
  std::vector<std::string> without_text;
  bool waits_for_text = false;
  for (std::string line; std::getline(help, line);) {
    const bool is_text = line.starts_with("      ");
    if (waits_for_text && !is_text) without_text.push_back(names.back());
    std::smatch parts;
    waits_for_text = std::regex_match(line, parts, option) && !parts[4].matched;
    if (!parts.empty()) names.push_back(parts[1]);
  }
  EXPECT_GT(names.size(), 80U);
  // The fixture's own options.
  EXPECT_THAT(without_text, ::testing::ElementsAre("--model.width", "--data.num_samples"));
}

TEST_F(RunTest, FunctionsCanHaveNoOptions) {
  const char* words[] = {"train", "--epochs", "1", "--checkpoint", "none", "--device", "cpu"};
  ::testing::internal::CaptureStdout();
  const int status = cli::run(
      7, words, [] { return linkboy::testing::toy_model(); },
      [] { return RunData{.train_dataset = toy_data(8)}; },
      {.loss_function = torch::nn::CrossEntropyLoss()});
  ::testing::internal::GetCapturedStdout();
  EXPECT_EQ(status, 0);
}

}  // namespace
}  // namespace linkboy::cli::run_options_test
