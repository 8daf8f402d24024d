// Tests of complete programs that call `run`: training must follow the configuration.

#include <gmock/gmock.h>

#include <csignal>
#include <regex>

#include "linkboy/callbacks/lambda_callback.hpp"
#include "linkboy/checkpoint/training_state_folders.hpp"
#include "linkboy/metrics/classification.hpp"
#include "run_fixture.hpp"
#include "support/at_update.hpp"
#include "support/file_contents.hpp"

namespace linkboy::cli::run_test {
namespace {

using linkboy::testing::AtUpdate;
using ::testing::AllOf;
using ::testing::Contains;
using testing::first_weight;
using ::testing::HasSubstr;
using ::testing::Not;
using testing::Outcome;
using testing::RunTest;
using testing::toy_data;

TEST_F(RunTest, TrainsTestsAndSaves) {
  EXPECT_THAT(succeed({}), AllOf(HasSubstr("train_loss_epoch"), HasSubstr("test loss: "),
                                 HasSubstr("checkpoint: ")));
  EXPECT_EQ(first_weight(checkpoint()).sizes(), (std::vector<int64_t>{5, 4}));
}

TEST_F(RunTest, TheLogFileContainsThePrintedMessages) {
  EXPECT_THAT(succeed({"--log.file", "run.log"}), HasSubstr("Starting training run"));
  EXPECT_THAT(read_bytes(folder / "output" / "run.log"),
              AllOf(HasSubstr("[info] [rank 0] Starting training run"),
                    HasSubstr("[info] [rank 0] test loss: ")));
  EXPECT_EQ(run({"--log.print", "false", "--log.level", "warning"}).output, "");
}

TEST_F(RunTest, OneFileConfiguresEverything) {
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
  EXPECT_THAT(succeed({"--config", path}),
              AllOf(HasSubstr("test accuracy: "), HasSubstr("test f1: ")));
  const StateDict saved = checkpoint();
  EXPECT_EQ(first_weight(saved).size(0), 7);
  // 16 samples in batches of 4, two batches per update, three epochs.
  EXPECT_EQ(saved.get_dict("scheduler_state_dict").get_int("num_updates"), 6);
  const StateDict optimizer = saved.get_dict("optimizer_state_dict");
  const auto fields = StateDict::from_ivalue(optimizer.get_list("param_groups")[0], "a group");
  EXPECT_EQ(fields.get_double("lr"), 0.0625);
  EXPECT_EQ(fields.get_double("momentum"), 0.9);
  EXPECT_THAT(read_bytes(folder / "run.csv"), HasSubstr("learning_rate"));
}

TEST_F(RunTest, AResumedRunReportsChangesOfTheSavedConfiguration) {
  succeed({"--save-every-epochs", "1", "--optimizer.lr", "0.125"});
  const auto state = latest_training_state(folder / "output" / "states", [](const auto&) {});
  ASSERT_TRUE(state);
  const auto callbacks = read_checkpoint(*state / "training_state.pt")
                             .get_dict("training_state")
                             .get_dict("callbacks");
  const auto saved = nlohmann::json::parse(
      callbacks.get_dict("linkboy::cli::RunConfiguration").get_string("config"));
  EXPECT_EQ(saved["optimizer"]["lr"], 0.125);

  EXPECT_THAT(
      succeed({"--states.every_n_epochs", "1", "--optimizer.lr", "0.125", "--resume_from", "latest",
               "--epochs", "3"}),
      AllOf(HasSubstr("Configuration changed since the saved state: train/num_epochs is 3, was 2"),
            Not(HasSubstr("optimizer/lr is")), Not(HasSubstr("resume_from is"))));
}

TEST_F(RunTest, StartsFromTheWeightsOfAFile) {
  succeed({"--optimizer", "sgd:lr=0", "--seed", "1"});
  const std::string path = moved_checkpoint();
  succeed({"--optimizer", "sgd:lr=0", "--seed", "2", "--init_from", path});
  EXPECT_TRUE(at::equal(first_weight(read_checkpoint(path)), first_weight(checkpoint())));
}

TEST_F(RunTest, WeightsAreFoundUnderTheirUsualNamesOrAKey) {
  const auto weight = torch::full({5, 4}, 0.25);
  const StateDict weights{{"0.weight", weight},
                          {"0.bias", torch::zeros({5})},
                          {"2.weight", torch::zeros({3, 5})},
                          {"2.bias", torch::zeros({3})}};
  const std::string path = (folder / "w.pt").string();
  for (const char* key : {"model_state_dict", "state_dict", "model", "net"}) {
    SCOPED_TRACE(key);
    write_checkpoint(path, {{key, weights.to_ivalue()}});
    std::vector<std::string> arguments{"--optimizer", "sgd:lr=0", "--init-from", path};
    if (key == std::string("net")) arguments.insert(arguments.end(), {"--init-key", key});
    succeed(arguments);
    EXPECT_TRUE(at::equal(weight, first_weight(checkpoint())));
  }
  fail(1, {"--init-from", path, "--init-key", "nets"}, "nets");
  fail(1, {"--init-from", path, "--init-key", "net", "--model.width", "6"}, "w.pt\" do not fit: ");
}

TEST_F(RunTest, ALoadedCheckpointDoesNotChangeTheLearningRate) {
  succeed({"--optimizer", "sgd:lr=0.5,momentum=0.9"});
  const std::string path = moved_checkpoint();
  succeed({"--optimizer", "sgd:lr=0,momentum=0.9", "--load-checkpoint", path});
  const auto first = read_checkpoint(path);
  EXPECT_TRUE(at::equal(first_weight(first), first_weight(checkpoint())));
  const auto momentum = [](const StateDict& contents) {
    const auto states = contents.get_dict("optimizer_state_dict").at("state").toGenericDict();
    return states.at(int64_t{0}).toGenericDict().at("momentum_buffer").toTensor();
  };
  EXPECT_FALSE(at::equal(momentum(first), momentum(checkpoint())))
      << "training continues from the loaded momentum";
}

TEST_F(RunTest, AResumedRunSavesItsLastStateByDefault) {
  succeed({"--epochs", "1", "--save-every-epochs", "1"});
  const auto num_states = [&] {
    const auto is_state = [](const auto& entry) { return entry.is_directory(); };
    const std::filesystem::directory_iterator entries(folder / "output" / "states");
    return std::count_if(begin(entries), end(entries), is_state);
  };
  EXPECT_EQ(num_states(), 1);
  EXPECT_THAT(succeed({"--epochs", "2", "--resume-from", "latest"}),
              HasSubstr("Resumed training state from"));
  EXPECT_EQ(num_states(), 2);
}

TEST_F(RunTest, ProgressCanBeDisabled) {
  const Outcome quiet = run({"--progress", "none"});
  EXPECT_THAT(quiet.output, AllOf(Not(HasSubstr("Starting")), HasSubstr("checkpoint: ")));
  EXPECT_EQ(quiet.errors, "");
  EXPECT_THAT(run({"--progress", "plain"}).errors, HasSubstr("epoch 2 100%"));
}

TEST_F(RunTest, ANamedCallbackReplacesTheDefaultOne) {
  const auto num_logged = [&](std::vector<std::string> arguments) {
    const std::string output = succeed(std::move(arguments));
    const std::regex name("train_loss_epoch");
    return std::distance(std::sregex_iterator(output.begin(), output.end(), name),
                         std::sregex_iterator());
  };
  EXPECT_EQ(num_logged({"--epochs", "2"}), 2);
  EXPECT_EQ(num_logged({"--epochs", "2", "--callbacks", "log-metrics:every_n_epochs=2"}), 1);
  EXPECT_EQ(num_logged({"--epochs", "2", "--default_callbacks", "false"}), 0);
}

TEST_F(RunTest, UsesTheTrainerAndCallbacksOfTheProgram) {
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
  program.after_training = [&](Trainer& trainer, const RunResult& result) {
    is_own_trainer = dynamic_cast<Doubled*>(&trainer) != nullptr;
    num_updates = result.training.num_updates;
    EXPECT_TRUE(result.test_metrics.contains("evaluation_loss"));
  };
  succeed({"--epochs", "1", "--own"}, program);
  EXPECT_TRUE(is_own_trainer);
  EXPECT_TRUE(is_switched);
  EXPECT_EQ(num_updates, 3);
  EXPECT_EQ(num_calls, 3);
  EXPECT_THAT(run({"--help"}, program).output, HasSubstr("Trains a toy."));
}

TEST_F(RunTest, ASignalEndsTheProgramWithItsStatusAfterTheCheckpoint) {
  RunProgram program;
  program.make_callbacks = [](const RunSettings&, const Model&) -> CallbackList {
    return {make<LambdaCallback>({.on_train_update_end = [](Trainer&) { std::raise(SIGTERM); }})};
  };
  const Outcome outcome = run({}, program);
  EXPECT_EQ(outcome.status, 128 + SIGTERM);
  EXPECT_THAT(outcome.output, AllOf(HasSubstr("stopped by signal 15 (Terminated) after update 1"),
                                    Not(HasSubstr("test loss"))));
  EXPECT_TRUE(checkpoint().contains("model_state_dict"));
}

TEST_F(RunTest, ASignalDeterminesTheStatusWhateverTheProgramDoesAfterIt) {
  RunProgram program;
  program.make_callbacks = [](const RunSettings&, const Model&) -> CallbackList {
    return {std::make_shared<AtUpdate>(2, [](Trainer&) { std::raise(SIGUSR1); })};
  };
  program.after_training = [](Trainer& trainer, const RunResult&) {
    trainer.evaluate({.dataset = toy_data(6)});
  };
  const std::string saver = "save-training-state:every_n_updates=100";
  for (const auto& options : {std::vector<std::string>{},
                              {"--callbacks", saver},
                              {"--callbacks", saver + ",save_at_end=false"}}) {
    const Outcome outcome = run(options, program);
    EXPECT_EQ(outcome.status, 128 + SIGUSR1) << outcome.errors;
    EXPECT_THAT(outcome.output, Not(HasSubstr("ERROR")));
    std::filesystem::remove_all(folder / "output");
  }
}

TEST_F(RunTest, ARunThatASignalHasEndedResumesFromItsLastUpdate) {
  RunProgram program;
  int64_t num_updates = 0;
  program.after_training = [&](Trainer& trainer, const RunResult&) {
    num_updates = trainer.num_updates();
  };
  const std::vector<std::string> to_the_end{"--callbacks", "none"};
  succeed(to_the_end, program);
  const StateDict whole = checkpoint();
  EXPECT_FALSE(std::filesystem::exists(folder / "output" / "states")) << "no signal, no states";

  RunProgram interrupted;
  interrupted.make_callbacks = [](const RunSettings&, const Model&) -> CallbackList {
    return {std::make_shared<AtUpdate>(2, [](Trainer&) { std::raise(SIGTERM); })};
  };
  const Outcome outcome = run({}, interrupted);
  EXPECT_EQ(outcome.status, 128 + SIGTERM);
  EXPECT_THAT(outcome.output, HasSubstr("continue with --resume_from latest"));
  EXPECT_THAT(succeed({"--resume-from", "latest"}, program), HasSubstr("(epoch 1, update 2)"));
  EXPECT_EQ(num_updates, 6);
  EXPECT_TRUE(at::equal(first_weight(checkpoint()), first_weight(whole)));
}

TEST_F(RunTest, AStateThatCannotBeSavedAfterASignalIsReported) {
  RunProgram program;
  program.make_callbacks = [&](const RunSettings&, const Model&) -> CallbackList {
    return {std::make_shared<AtUpdate>(2, [&](Trainer&) {
      std::ofstream(folder / "output" / "states") << "a file in the way";
      std::raise(SIGTERM);
    })};
  };
  // With --states options, the folder is checked before the run.
  const Outcome outcome = run({}, program);
  EXPECT_EQ(outcome.status, 1) << "a script must not continue the run as if it were saved";
  EXPECT_THAT(outcome.output, AllOf(HasSubstr("ERROR: the training state was not saved: "),
                                    Not(HasSubstr("Saved a training state"))));
  EXPECT_THAT(outcome.errors, HasSubstr("stopped after update 2, but its training state was not"));
}

TEST_F(RunTest, ASignalInAnEvaluationSavesAStateToo) {
  for (const char* interval : {"", "99"}) {
    std::vector<std::string> options;
    if (*interval != '\0') options = {"--states.every_n_updates", interval};
    RunProgram program;
    program.make_callbacks = [](const RunSettings&, const Model&) -> CallbackList {
      return {make<LambdaCallback>({.on_eval_epoch_start = [](Trainer&) { std::raise(SIGTERM); }})};
    };
    EXPECT_EQ(run(options, program).status, 128 + SIGTERM);
    EXPECT_THAT(succeed({"--resume-from", "latest"}), HasSubstr("Resumed training state"));
    std::filesystem::remove_all(folder / "output");
  }
}

TEST_F(RunTest, AProgramCanHaveMetricsOfItsOwn) {
  RunProgram program;
  program.metrics = {{"own", accuracy({.num_classes = 3})}};
  std::vector<std::string> names;
  program.after_training = [&](Trainer& trainer, const RunResult&) {
    names = trainer.run_history().get_metric_names();
  };
  succeed({"--metrics", "accuracy:num_classes=3,top_k=2"}, program);
  EXPECT_THAT(names, AllOf(Contains("eval_own"), Contains("eval_accuracy")));
}

TEST_F(RunTest, ANaNIsAnErrorAndWritesNoCheckpoint) {
  std::optional<RunResult> result;
  RunProgram program;
  program.after_training = [&](Trainer&, const RunResult& of_run) { result = of_run; };
  const Outcome outcome = run({"--optimizer", "sgd:lr=1e38"}, program);
  EXPECT_EQ(outcome.status, 1);
  ASSERT_TRUE(result);
  EXPECT_EQ(result->training.reason, StopReason::nan);
  EXPECT_TRUE(result->test_metrics.empty());
  EXPECT_THAT(outcome.errors, HasSubstr("the loss became NaN or infinite"));
  EXPECT_FALSE(std::filesystem::exists(checkpoint_path()));
}

TEST_F(RunTest, AFastDevRunWritesNoCheckpoint) {
  succeed({"--callbacks", "fast-dev-run"});
  EXPECT_FALSE(std::filesystem::exists(checkpoint_path()));
  succeed({"--checkpoint", "none"});
  EXPECT_FALSE(std::filesystem::exists(checkpoint_path()));
}

TEST_F(RunTest, TrackersReceiveTheConfiguration) {
  succeed({"--trackers", "json-lines:path=" + (folder / "run.jsonl").string()});
  EXPECT_THAT(read_bytes(folder / "run.jsonl"), HasSubstr(R"("train.per_device_batch_size":"4")"));
}

}  // namespace
}  // namespace linkboy::cli::run_test
