// Tests of the configuration of programs that call `run`: files, the command line and errors.

#include <gmock/gmock.h>

#include "linkboy/callbacks/early_stopping.hpp"
#include "linkboy/callbacks/model_ema.hpp"
#include "linkboy/cli/engine_settings.hpp"
#include "linkboy/metrics/classification.hpp"
#include "linkboy/schedulers/composite.hpp"
#include "linkboy/schedulers/curves.hpp"
#include "linkboy/schedulers/cycles.hpp"
#include "linkboy/schedulers/functions.hpp"
#include "linkboy/tracking/csv_tracker.hpp"
#include "run_fixture.hpp"
#include "support/expect_error.hpp"

namespace linkboy::cli::run_options_test {
namespace {

using ::testing::AllOf;
using testing::expect_members;
using ::testing::HasSubstr;
using testing::NetOptions;
using testing::RunTest;
using testing::toy_data;

TEST_F(RunTest, TheCommandLineOverridesTheFile) {
  const std::string path = write_config(
      R"({"optimizer": {"name": "sgd", "lr": 0.5, "momentum": 0.9}, "callbacks": ["model-ema"]})");
  expect_members(print_config({"--config", path, "--optimizer.lr", "0.25", "--model.width=9"}),
                 R"({"optimizer": {"lr": 0.25, "momentum": 0.9}, "model": {"width": 9}})");
  const auto config = print_config(
      {"--config", path, "--optimizer", "adamw:lr=0.1", "--callbacks", "time-limit:max_time=5min"});
  expect_members(config, R"({"optimizer": {"name": "adamw", "betas": "0.9,0.999"}})");
  ASSERT_EQ(config["callbacks"].size(), 1U);
  EXPECT_EQ(config["callbacks"][0]["max_time"], "5min");
}

TEST_F(RunTest, ShortNamesSetTheSameOptions) {
  const auto config = print_config({"--epochs", "7", "--batch-size", "3", "--lr", "0.125",
                                    "--precision", "bf16", "--workers", "2", "--zero_stage", "1"});
  expect_members(config, R"({"train": {"num_epochs": 7, "per_device_batch_size": 3},
                             "optimizer": {"lr": 0.125}, "train_dataloader": {"num_workers": 2},
                             "accelerator": {"precision": "bf16",
                                             "distributed": {"zero_stage": 1}}})");
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
  fail(2, {"--zero", "1"},
       "Options that contain this name: --accelerator.distributed.zero_stage, ");
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
  fail(2, {"--compile.tolerance", "0.1"}, "steps are not compiled; set --execution compiled");
  fail(2, {"--compile-in-background"}, "steps are not compiled");
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
  EXPECT_THAT(run({"--list", "metrics"}).output,
              AllOf(HasSubstr("top_k"), HasSubstr("num_classes=required")));
  EXPECT_THAT(run({"--list", "callbacks"}).output,
              HasSubstr("\nmodel-ema\n    decay=0.9999\n    warmup=true\n"));
  EXPECT_THAT(run({"--help"}).output, HasSubstr("--train.num_epochs"));
}

TEST_F(RunTest, TheCommandLineOverridesTypedDefaults) {
  RunProgram program;
  program.defaults.optimizer = sgd({.lr = 0.5, .momentum = 0.9});
  program.defaults.scheduler = by_epoch(cosine({.min_lr = 0.125}));
  program.defaults.callbacks = {early_stopping({.patience = 3})};
  program.defaults.metrics = {accuracy({.num_classes = 3})};
  program.defaults.trackers = {csv_tracker("a.csv")};
  expect_members(print_config({}, program),
                 R"({"optimizer": {"name": "sgd", "lr": 0.5, "momentum": 0.9},
                     "scheduler": {"name": "cosine", "min_lr": 0.125, "by_epoch": true},
                     "trackers": [{"name": "csv", "path": "a.csv", "append": false}]})");
  const auto config = print_config(
      {"--lr", "0.25", "--scheduler", "none", "--metrics", "accuracy:num_classes=5,as=five"},
      program);
  expect_members(config, R"({"optimizer": {"name": "sgd", "lr": 0.25, "momentum": 0.9},
                             "scheduler": "none"})");
  EXPECT_EQ(config["callbacks"][0]["patience"], 3);
  ASSERT_EQ(config["metrics"].size(), 1U);
  EXPECT_EQ(config["metrics"][0]["num_classes"], 5);
  EXPECT_THAT(run({"--help"}, program).output,
              AllOf(HasSubstr("--optimizer NAME[:KEY=VALUE,...] (=sgd:lr=0.5,momentum=0.9)"),
                    HasSubstr("(=cosine:min_lr=0.125,by_epoch=true)")));
}

TEST_F(RunTest, AnObjectWithTheNameOfADefaultKeepsTheOptionsThatAreNotGiven) {
  RunProgram program;
  program.defaults.optimizer = sgd({.lr = 0.5, .momentum = 0.9});
  program.defaults.callbacks = {early_stopping({.patience = 3}), model_ema({.decay = 0.5})};
  const auto config = print_config(
      {"--optimizer", "sgd:weight_decay=0.25", "--callbacks", "early-stopping:min_delta=0.125"},
      program);
  expect_members(config, R"({"optimizer": {"lr": 0.5, "momentum": 0.9, "weight_decay": 0.25}})");
  ASSERT_EQ(config["callbacks"].size(), 1U) << "a list is replaced as a whole";
  EXPECT_EQ(config["callbacks"][0]["patience"], 3);
  EXPECT_EQ(config["callbacks"][0]["min_delta"], 0.125);
  EXPECT_EQ(print_config({"--optimizer", "adam"}, program)["optimizer"]["lr"], 0.001);
  EXPECT_TRUE(print_config({"--callbacks", "none"}, program)["callbacks"].empty());
  EXPECT_THAT(run({"--help"}, program).output,
              HasSubstr("(=early-stopping:patience=3 model-ema:decay=0.5)"));
}

TEST_F(RunTest, DefaultsThatTheRunWouldNotUseAreRefused) {
  RunProgram program;
  program.defaults.train.create_scheduler_fn = cosine();
  EXPECT_THAT(run({}, program).errors, HasSubstr("Set defaults.scheduler, and return the data"));
}

TEST_F(RunTest, ADefaultThatTextCannotExpressIsRefused) {
  const auto half = [](double) { return 0.5; };
  EXPECT_ERROR_AS(OptionError, NamedSettings(cyclic({.max_lr = 0.5, .scale_fn = half})),
                  "linkboy::CyclicScheduler) has an option that is a function");
  EXPECT_ERROR_AS(OptionError, NamedSettings(lambda_schedule({.lr_lambda = {half}})),
                  "does not have a name in text. Add it in the program");
  const NamedSettings twice(by_epoch(by_epoch(cosine())));
  EXPECT_EQ(twice.settings, (TextSettings{{"by_epoch", "true"}}));
}

TEST_F(RunTest, AHandWrittenLoopReadsTheSameFile) {
  const std::string path = write_config(R"({
    "train": {"num_epochs": 3, "gradient_clip_norm": 0.5}, "accelerator": {"device": "cpu"},
    "optimizer": {"name": "sgd", "lr": 0.5}, "scheduler": {"name": "step", "gamma": 0.25},
    "train_dataloader": {"batch_size": 4}, "seed": 3, "model": {"width": 6}})");
  NetOptions net;
  const EngineProgram program{.defaults = {.scheduler = cosine()},
                              .add_options = [&](CommandLine& command_line) {
                                command_line.add_group("Model").add_fields("model", &net);
                              }};
  const auto settings =
      engine_settings("train", {"--config", path, "--lr", "0.125", "--workers", "1"}, program);
  EXPECT_EQ(net.width, 6);
  EXPECT_EQ(settings.seed, 3U);
  EXPECT_EQ(settings.train_dataloader.num_workers, 1);
  const auto model = linkboy::testing::toy_model();
  auto [engine, train_dataloader, eval_dataloader, scheduler] =
      initialize(model, settings.make_optimizer(model->parameters()), torch::nn::CrossEntropyLoss(),
                 make_data_loader(toy_data(8), settings.train_dataloader), nullptr,
                 settings.make_scheduler_fn(), settings.train);
  EXPECT_EQ(engine.accelerator().device(), torch::Device("cpu"));
  EXPECT_EQ(engine.run_config().max_num_updates, 6);
  EXPECT_EQ(engine.run_config().gradient_clip_norm, 0.5);
  EXPECT_EQ(scheduler->values_at(0), std::vector<double>{0.125});
  EXPECT_EQ(scheduler->values_at(6), std::vector<double>{0.125 * 0.25});
}

TEST_F(RunTest, TheOptionsOfAHandWrittenLoopAreChecked) {
  const auto read = [](const Arguments& arguments) { return engine_settings("loop", arguments); };
  EXPECT_ERROR_AS(UsageError, read({"--optimizer", "sgdm"}), "there is no optimizer");
  EXPECT_ERROR_AS(UsageError, read({"--callbacks", "model-ema"}), "is not an option of loop");
  EXPECT_ERROR_AS(UsageError, read({"--lr", "-1"}).make_optimizer({}),
                  "--optimizer: the optimizer's lr");
  EXPECT_ERROR_AS(UsageError, read({"--scheduler", "exponential"}).make_scheduler_fn(),
                  "--scheduler: the scheduler exponential's gamma is missing");
  EXPECT_FALSE(read({}).make_scheduler_fn());
  ::testing::internal::CaptureStdout();
  EXPECT_THROW(read({"--help"}), ExitStatus);
  EXPECT_THAT(::testing::internal::GetCapturedStdout(), HasSubstr("--train.num_epochs"));
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
