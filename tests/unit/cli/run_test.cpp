// Whole programs made by `run`: what the configuration says is what happens.

#include "linkboy/cli/run.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <csignal>
#include <fstream>
#include <nlohmann/json.hpp>

#include "linkboy/callbacks/lambda_callback.hpp"
#include "linkboy/checkpoint/checkpoint.hpp"
#include "linkboy/checkpoint/training_state_folders.hpp"
#include "support/file_contents.hpp"
#include "support/temporary_folder.hpp"
#include "support/toy.hpp"

namespace linkboy::cli::run_test {
namespace {

using linkboy::testing::toy_data;
using ::testing::HasSubstr;
using ::testing::Not;

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

/// Programs in a folder of their own.
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

  /// The configuration that is printed, without a run.
  nlohmann::json print_config(std::vector<std::string> arguments, RunProgram program = {}) {
    arguments.emplace_back("--print-config");
    const Outcome outcome = run(std::move(arguments), std::move(program));
    EXPECT_EQ(outcome.status, 0) << outcome.errors;
    EXPECT_FALSE(std::filesystem::exists(folder / "output"));
    return nlohmann::json::parse(outcome.output);
  }

  std::string write_config(const std::string& text) const {
    std::ofstream(folder / "run.json") << text;
    return (folder / "run.json").string();
  }

  StateDict checkpoint() const { return read_checkpoint(folder / "output" / "checkpoint.pt"); }

  const TemporaryFolder folder;
};

TEST_F(RunTest, TrainsTestsAndSaves) {
  const Outcome outcome = run({});
  EXPECT_EQ(outcome.status, 0) << outcome.errors;
  EXPECT_THAT(outcome.output, HasSubstr("train_loss_epoch"));
  EXPECT_THAT(outcome.output, HasSubstr("test loss: "));
  EXPECT_THAT(outcome.output, HasSubstr("checkpoint: "));
  EXPECT_EQ(checkpoint().get_dict("model_state_dict").get_tensor("0.weight").sizes(),
            (std::vector<int64_t>{5, 4}));
}

TEST_F(RunTest, TheLogFileHasWhatIsPrinted) {
  const Outcome outcome = run({"--log.file", "run.log"});
  EXPECT_EQ(outcome.status, 0) << outcome.errors;
  EXPECT_THAT(outcome.output, HasSubstr("Starting training run"));
  const std::string logged = read_bytes(folder / "output" / "run.log");
  EXPECT_THAT(logged, HasSubstr("[info] [rank 0] Starting training run"));
  EXPECT_THAT(logged, HasSubstr("[info] [rank 0] test loss: "));
  EXPECT_EQ(run({"--log.print", "false", "--log.level", "warning"}).output, "");
}

TEST_F(RunTest, OneFileDrivesEverything) {
  const std::string path = write_config(R"({
    "train": {"num_epochs": 3, "gradient_accumulation_steps": 2, "gradient_clip_norm": 0.5},
    "train_dataloader": {"shuffle": false},
    "accelerator": {"precision": "bf16", "distributed": {"bucket_cap_mb": 5}},
    "optimizer": {"name": "sgd", "lr": 0.5, "momentum": 0.9},
    "scheduler": {"name": "step", "step_size": "num_updates_per_epoch", "gamma": 0.5},
    "callbacks": [{"name": "learning-rate-monitor"}, "early-stopping:patience=9"],
    "metrics": [{"name": "accuracy", "num_classes": 3}, "f-beta:num_classes=3,as=f1"],
    "trackers": [{"name": "csv", "path": ")" +
                                        (folder / "run.csv").string() + R"("}],
    "track_run": {"every_n_updates": 1},
    "model": {"width": 7},
    "data": {"num_samples": 16},
    "seed": 3
  })");
  const Outcome outcome = run({"--config", path});
  EXPECT_EQ(outcome.status, 0) << outcome.errors;
  EXPECT_THAT(outcome.output, HasSubstr("test accuracy: "));
  EXPECT_THAT(outcome.output, HasSubstr("test f1: "));
  const StateDict saved = checkpoint();
  EXPECT_EQ(saved.get_dict("model_state_dict").get_tensor("0.weight").size(0), 7);
  // 16 samples in batches of 4, two of which make an update, in three epochs.
  EXPECT_EQ(saved.get_dict("scheduler_state_dict").get_int("num_updates"), 6);
  const StateDict optimizer = saved.get_dict("optimizer_state_dict");
  const auto fields = StateDict::from_ivalue(optimizer.get_list("param_groups")[0], "a group");
  EXPECT_EQ(fields.get_double("lr"), 0.0625);
  EXPECT_EQ(fields.get_double("momentum"), 0.9);
  EXPECT_THAT(read_bytes(folder / "run.csv"), HasSubstr("learning_rate"));
}

TEST_F(RunTest, TheCommandLineWinsOverTheFile) {
  const std::string path = write_config(
      R"({"optimizer": {"name": "sgd", "lr": 0.5, "momentum": 0.9}, "callbacks": ["model-ema"]})");
  auto config = print_config({"--config", path, "--optimizer.lr", "0.25", "--model.width=9"});
  EXPECT_EQ(config["optimizer"]["lr"], 0.25);
  EXPECT_EQ(config["optimizer"]["momentum"], 0.9);
  EXPECT_EQ(config["model"]["width"], 9);
  config = print_config(
      {"--config", path, "--optimizer", "adamw:lr=0.1", "--callbacks", "time-limit:minutes=5"});
  EXPECT_EQ(config["optimizer"]["name"], "adamw");
  EXPECT_EQ(config["optimizer"]["betas"], "0.9,0.999");
  ASSERT_EQ(config["callbacks"].size(), 1U);
  EXPECT_EQ(config["callbacks"][0]["minutes"], 5);
}

TEST_F(RunTest, ShortNamesSetTheSameOptions) {
  const auto config = print_config({"--epochs", "7", "--batch-size", "3", "--lr", "0.125",
                                    "--precision", "bf16", "--workers", "2"});
  EXPECT_EQ(config["train"]["num_epochs"], 7);
  EXPECT_EQ(config["train"]["per_device_batch_size"], 3);
  EXPECT_EQ(config["optimizer"]["lr"], 0.125);
  EXPECT_EQ(config["accelerator"]["precision"], "bf16");
  EXPECT_EQ(config["train_dataloader"]["num_workers"], 2);
}

TEST_F(RunTest, ThePrintedConfigurationIsReadAsItIs) {
  const auto config =
      print_config({"--scheduler", "multi-step:milestones=3,5,gamma=0.5", "--metrics",
                    "accuracy:num_classes=3", "--trackers", "csv:path=a.csv", "--callbacks",
                    "save-best-model", "--track_run.name", "0.10"});
  EXPECT_EQ(config["scheduler"]["milestones"], "3,5");
  EXPECT_EQ(config["track_run"]["name"], "0.10");
  EXPECT_EQ(print_config({"--config", write_config(config.dump())}), config);
}

TEST_F(RunTest, ATrainingStateCarriesTheConfigurationAndAResumedRunTellsWhatHasChanged) {
  EXPECT_EQ(run({"--save_every_n_epochs", "1", "--optimizer.lr", "0.125"}).status, 0);
  const auto state = latest_training_state(folder / "output" / "states", [](const auto&) {});
  ASSERT_TRUE(state);
  const auto callbacks = read_checkpoint(*state / "training_state.pt")
                             .get_dict("training_state")
                             .get_dict("callbacks");
  const auto saved = nlohmann::json::parse(
      callbacks.get_dict("linkboy::cli::RunConfiguration").get_string("config"));
  EXPECT_EQ(saved["optimizer"]["lr"], 0.125);

  const Outcome resumed = run({"--save_every_n_epochs", "1", "--optimizer.lr", "0.125",
                               "--resume_from", "latest", "--epochs", "3"});
  EXPECT_EQ(resumed.status, 0) << resumed.errors;
  EXPECT_THAT(resumed.output, HasSubstr("Configuration changed since the saved state: "
                                        "train/num_epochs is 3, was 2"));
  EXPECT_THAT(resumed.output, Not(HasSubstr("optimizer/lr is")));
  EXPECT_THAT(resumed.output, Not(HasSubstr("resume_from is")));
}

TEST_F(RunTest, StartsFromTheWeightsOfAFile) {
  EXPECT_EQ(run({"--optimizer", "sgd:lr=0", "--seed", "1"}).status, 0);
  const auto first = checkpoint().get_dict("model_state_dict").get_tensor("0.weight").clone();
  const std::string path = (folder / "first.pt").string();
  std::filesystem::rename(folder / "output" / "checkpoint.pt", path);
  EXPECT_EQ(run({"--optimizer", "sgd:lr=0", "--seed", "2", "--init_from", path}).status, 0);
  EXPECT_TRUE(at::equal(first, checkpoint().get_dict("model_state_dict").get_tensor("0.weight")));
}

TEST_F(RunTest, ANamedCallbackReplacesTheDefaultOne) {
  const Outcome outcome = run({"--callbacks", "log-metrics:every_n_epochs=2"});
  EXPECT_EQ(outcome.status, 0) << outcome.errors;
  const Outcome quiet = run({"--default_callbacks", "false"});
  EXPECT_THAT(quiet.output, Not(HasSubstr("train_loss_epoch")));
}

TEST_F(RunTest, ThePartsOfTheProgramAreUsed) {
  struct Doubled : Trainer {
    using Trainer::Trainer;
  };
  bool is_own_trainer = false;
  int64_t num_updates = 0;
  bool is_switched = false;
  int64_t num_calls = 0;
  RunProgram program;
  program.description = "Trains a toy.";
  program.make_trainer = [](Model model, LossFunction loss,
                            std::shared_ptr<torch::optim::Optimizer> optimizer,
                            TrainerOptions options) {
    return std::make_unique<Doubled>(std::move(model), std::move(loss), std::move(optimizer),
                                     std::move(options));
  };
  program.add_options = [&](CommandLine& command_line) {
    command_line.add_group("Own").add_switch("own", &is_switched, "A switch.");
  };
  program.make_callbacks = [&](const RunSettings& settings, const Model&) -> CallbackList {
    EXPECT_EQ(settings.train.num_epochs, 1);
    return {make<LambdaCallback>({.on_train_update_end = [&](Trainer&) { ++num_calls; }})};
  };
  program.after_training = [&](Trainer& trainer, const TrainResult& result) {
    is_own_trainer = dynamic_cast<Doubled*>(&trainer) != nullptr;
    num_updates = result.num_updates;
  };
  const Outcome outcome = run({"--epochs", "1", "--own"}, program);
  EXPECT_EQ(outcome.status, 0) << outcome.errors;
  EXPECT_TRUE(is_own_trainer);
  EXPECT_TRUE(is_switched);
  EXPECT_EQ(num_updates, 3);
  EXPECT_EQ(num_calls, 3);
  EXPECT_THAT(run({"--help"}, program).output, HasSubstr("Trains a toy."));
}

TEST_F(RunTest, ASignalEndsTheProgramAsIfItHadKilledItButForTheCheckpoint) {
  RunProgram program;
  program.make_callbacks = [](const RunSettings&, const Model&) -> CallbackList {
    return {make<LambdaCallback>({.on_train_update_end = [](Trainer&) { std::raise(SIGTERM); }})};
  };
  const Outcome outcome = run({}, program);
  EXPECT_EQ(outcome.status, 128 + SIGTERM);
  EXPECT_THAT(outcome.output, HasSubstr("stopped on request after 1 updates"));
  EXPECT_THAT(outcome.output, Not(HasSubstr("test loss")));
  EXPECT_TRUE(checkpoint().contains("model_state_dict"));
}

TEST_F(RunTest, ANaNIsAnErrorAndWritesNoCheckpoint) {
  const Outcome outcome = run({"--optimizer", "sgd:lr=1e38"});
  EXPECT_EQ(outcome.status, 1);
  EXPECT_THAT(outcome.errors, HasSubstr("the loss became NaN or infinite"));
  EXPECT_FALSE(std::filesystem::exists(folder / "output" / "checkpoint.pt"));
}

TEST_F(RunTest, ARehearsalWritesNoCheckpoint) {
  EXPECT_EQ(run({"--callbacks", "fast-dev-run"}).status, 0);
  EXPECT_FALSE(std::filesystem::exists(folder / "output" / "checkpoint.pt"));
  EXPECT_EQ(run({"--checkpoint", "none"}).status, 0);
  EXPECT_FALSE(std::filesystem::exists(folder / "output" / "checkpoint.pt"));
}

TEST_F(RunTest, WrongUsageTellsWhatThereIs) {
  const auto expect_usage = [&](std::vector<std::string> arguments, const std::string& text) {
    const Outcome outcome = run(std::move(arguments));
    EXPECT_EQ(outcome.status, 2) << text;
    EXPECT_THAT(outcome.errors, HasSubstr(text));
    EXPECT_FALSE(std::filesystem::exists(folder / "output"));
  };
  expect_usage({"--train.num_epoch", "3"}, "Did you mean --train.num_epochs?");
  expect_usage({"--optimizer", "sgdm"}, "there is no optimizer \"sgdm\"; there are sgd, adam");
  expect_usage({"--optimizer", "sgd:rate=1"}, "lr, momentum, dampening, weight_decay, nesterov");
  expect_usage({"--optimizer.betas", "0.9,0.99", "--optimizer", "sgd"}, "betas");
  expect_usage({"--scheduler.gamma", "0.5"}, "--scheduler is none; name one");
  expect_usage({"--callbacks", "early-stoping"}, "there is no callback \"early-stoping\"");
  expect_usage({"--callbacks", "early-stopping:patience=x"}, "it must be a whole number");
  expect_usage({"--callbacks", "early-stopping", "--callbacks", "early-stopping"}, "--callbacks");
  expect_usage({"--metrics", "accuracy"}, "num_classes is missing");
  expect_usage({"--trackers", "csv"}, "path is missing");
  expect_usage({"--config", write_config(R"({"trian": {"num_epochs": 1}})")},
               "'trian.num_epochs' is not an option of train. Did you mean train.num_epochs?");
  expect_usage({"--config", write_config(R"({"optimizer": {"lr": 1}})")}, "a member \"name\"");
  expect_usage({"--list", "nothing"},
               "it must be one of optimizer, scheduler, callbacks, metrics, trackers");
}

TEST_F(RunTest, ListsWhatCanBeNamed) {
  EXPECT_THAT(run({"--list", "optimizer"}).output, HasSubstr("momentum"));
  EXPECT_THAT(run({"--list", "metrics"}).output, HasSubstr("top_k"));
  EXPECT_THAT(run({"--help"}).output, HasSubstr("--train.num_epochs"));
}

TEST_F(RunTest, FunctionsMayTakeNoOptions) {
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
}  // namespace linkboy::cli::run_test
