// The calls of TrackRun to its trackers, and their times.

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <cmath>
#include <map>
#include <set>

#include "linkboy/callbacks/lambda_callback.hpp"
#include "linkboy/callbacks/save_training_state.hpp"
#include "linkboy/schedulers/curves.hpp"
#include "linkboy/tracking/tensorboard_tracker.hpp"
#include "linkboy/tracking/track_run.hpp"
#include "support/expect_error.hpp"
#include "support/fake_process_group.hpp"
#include "support/keep_losses.hpp"
#include "support/matchers.hpp"
#include "support/memory_tracker.hpp"
#include "support/python_peer.hpp"
#include "support/temporary_folder.hpp"

namespace linkboy::testing::track_run_test {
namespace {

using Entry = TrackedRun::Entries::value_type;

TEST(TrackRunTest, LogsMeanLossLearningRateAndSpeedEveryNUpdates) {
  const auto losses = std::make_shared<KeepLosses>();
  TrackedToy run({.every_n_updates = 2}, {losses});
  run.toy.trainer.train(short_run());
  EXPECT_EQ(run.tracker->updates_of("train_loss"), (Updates{2, 4, 6, 8}));
  const auto logged = run.tracker->of("train_loss");
  for (std::size_t i = 0; i < logged.size(); ++i) {
    const double mean = (losses->losses[2 * i] + losses->losses[2 * i + 1]) / 2.0;
    EXPECT_NEAR(logged[i].second, mean, 1e-6);
  }
  EXPECT_EQ(run.tracker->of("learning_rate").back(), (std::pair<int64_t, double>(8, 0.1)));
  EXPECT_EQ(run.tracker->updates_of("samples_per_second"), (Updates{2, 4, 6, 8}));
  for (const auto& [update, speed] : run.tracker->of("samples_per_second")) EXPECT_GT(speed, 0.0);
}

TEST(TrackRunTest, RecordsValuesFromOtherCallbacks) {
  auto other = make<LambdaCallback>({.on_train_update_end = [](Trainer& trainer) {
    auto track = trainer.callback_handler().find<TrackRun>();
    track->log_scalars(trainer, {{"mine", 2.0 * static_cast<double>(trainer.num_updates())}});
    track->log_text(trainer, "note", "hello");
  }});
  TrackedToy run({}, {other});
  run.toy.trainer.train(short_run(1));
  EXPECT_EQ(run.tracker->of("mine").back(), (std::pair<int64_t, double>(4, 8.0)));
  EXPECT_EQ(run.tracker->texts.size(), 4U);
  run.callback->log_text(run.toy.trainer, "late", "outside of a run");
  EXPECT_EQ(run.tracker->texts.size(), 4U);
}

TEST(TrackRunTest, TheLossIsThatOfItsEpoch) {
  const auto losses = std::make_shared<KeepLosses>();
  TrackedToy run({.every_n_updates = 3}, {losses});
  run.toy.trainer.train(short_run());
  EXPECT_EQ(run.tracker->updates_of("train_loss"), (Updates{3, 6}));
  EXPECT_NEAR(run.tracker->of("train_loss")[1].second,
              (losses->losses[4] + losses->losses[5]) / 2.0, 1e-6);
}

TEST(TrackRunTest, ANonFiniteLossAppearsOnlyInItsOwnRecord) {
  int num_losses = 0;
  const auto infinite_once = [&](const torch::Tensor& output, const torch::Tensor& target) {
    const auto loss = torch::nn::functional::cross_entropy(output, target);
    return ++num_losses == 2 ? loss + INFINITY : loss;  // the gradients are finite
  };
  const auto tracker = std::make_shared<MemoryTracker>();
  const auto model = toy_model();
  QuietTrainer trainer(model, infinite_once, toy_sgd(model),
                       {.callbacks = {make<TrackRun>({tracker}, {.every_n_updates = 1})},
                        .default_callbacks = {},
                        .accelerator = {.device = "cpu"}});
  trainer.train(short_run(1));
  const auto logged = tracker->of("train_loss");
  ASSERT_EQ(logged.size(), 4U);
  for (const auto& [update, loss] : logged) EXPECT_EQ(std::isfinite(loss), update != 2);
}

TEST(TrackRunTest, TheLearningRateIsThatOfTheLoggedUpdate) {
  TrackedToy run({.every_n_updates = 1});
  TrainOptions options = short_run(1);
  options.create_scheduler_fn = step_decay({.step_size = 1, .gamma = 0.5});
  run.toy.trainer.train(options);
  EXPECT_EQ(run.tracker->of("learning_rate"), (std::vector<std::pair<int64_t, double>>{
                                                  {1, 0.1}, {2, 0.05}, {3, 0.025}, {4, 0.0125}}));
}

TEST(TrackRunTest, RecordsALearningRateForEachParamGroup) {
  TrackedToy run;
  run.toy.optimizer->add_param_group(
      {{torch::zeros({1}).requires_grad_()}, std::make_unique<torch::optim::SGDOptions>(0.01)});
  run.toy.trainer.train(short_run(1));
  EXPECT_EQ(run.tracker->of("learning_rate_group_0").front().second, 0.1);
  EXPECT_EQ(run.tracker->of("learning_rate_group_1").front().second, 0.01);
  EXPECT_TRUE(run.tracker->of("learning_rate").empty());
}

TEST(TrackRunTest, LogsEachValueOfTheHistoryOnceWithItsUpdateAndEpoch) {
  TrackedToy run({.every_n_updates = 100});
  run.toy.trainer.train(short_run());
  const auto& history = run.toy.trainer.run_history();
  std::vector<TrackedPoint> expected;
  for (std::size_t i = 0; i < 2; ++i) {
    for (const std::string name : {"train_loss_epoch", "eval_loss_epoch"}) {
      const auto epoch = static_cast<int64_t>(i) + 1;
      expected.push_back({name, 4 * epoch, epoch, history.get_metric_values(name)[i]});
    }
  }
  EXPECT_EQ(run.tracker->points, expected);
  EXPECT_EQ(run.tracker->last_metrics.at("eval_loss_epoch"),
            history.get_latest_metric("eval_loss_epoch"));
}

TEST(TrackRunTest, RecordsTheResolvedConfiguration) {
  TrackedToy run({.name = "toy", .config = {{"layers", "2"}, {"num_epochs", "two"}}});
  run.toy.trainer.train(short_run());
  ASSERT_EQ(run.tracker->starts.size(), 1U);
  const TrackedRun& described = run.tracker->starts[0];
  EXPECT_EQ(described.name, "toy");
  EXPECT_EQ(described.first_update, 0);
  EXPECT_EQ(described.first_epoch, 0);
  EXPECT_THAT(described.config, IsSupersetOf<Entry>({{"train_per_device_batch_size", "2"},
                                                     {"optimizer", "torch::optim::SGD"},
                                                     {"lr", "0.1"},
                                                     {"weight_decay", "0"},
                                                     {"num_parameters", "43"},
                                                     {"num_trainable_parameters", "43"},
                                                     {"layers", "2"},
                                                     {"num_epochs", "two"}}));
  EXPECT_THAT(described.config, Contains(Key("seed")));
  std::set<std::string> names;
  for (const auto& [name, value] : described.config) EXPECT_TRUE(names.insert(name).second) << name;
  EXPECT_THAT(described.environment,
              IsSupersetOf<Entry>({{"libtorch", TORCH_VERSION}, {"device", "cpu"}}));
  EXPECT_THAT(described.environment, Contains(Key("host")));
}

TEST(TrackRunTest, RecordsHistogramsOfWeightsAndGradientsEveryNthEpoch) {
  TrackedToy run({.histograms_every_n_epochs = 2});
  run.toy.trainer.train(short_run(4));
  std::vector<std::pair<std::string, int64_t>> expected;
  for (const int64_t epoch : {2, 4}) {
    for (const auto& [kind, update] :
         {std::pair("gradients/", 4 * epoch - 3), std::pair("weights/", 4 * epoch)}) {
      for (const std::string name : {"0.weight", "0.bias", "2.weight", "2.bias"}) {
        expected.emplace_back(kind + name, update);
      }
    }
  }
  EXPECT_EQ(run.tracker->histograms, expected);
  EXPECT_TRUE(torch::equal(run.tracker->histogram_values.at("weights/2.bias"),
                           run.toy.model->parameters().back()));
  EXPECT_GT(run.tracker->histogram_values.at("gradients/2.bias").abs().sum().item<double>(), 0.0);
}

TEST(TrackRunTest, FlushesAtEpochEndsAndAfterTheInterval) {
  TrackedToy seldom({.flush_seconds = 1e6});
  seldom.toy.trainer.train(short_run());
  EXPECT_EQ(seldom.tracker->num_flushes, 4);  // after update 1, two epochs, and the run
  TrackedToy always({.flush_seconds = 0.0});
  always.toy.trainer.train(short_run());
  EXPECT_EQ(always.tracker->num_flushes, 8 + 2 + 1);
}

TEST(TrackRunTest, RecordsHowTheRunEnded) {
  TrackedToy run;
  run.toy.trainer.train(short_run());
  TrainOptions three_updates = short_run();
  three_updates.max_num_updates = 3;
  run.toy.trainer.train(three_updates);
  run.toy.trainer.callback_handler().add(stop_at(3));
  run.toy.trainer.train(short_run());
  EXPECT_THAT(run.tracker->outcomes, ElementsAre("finished", "max_num_updates", "stop_request"));

  TrackedToy failing({.every_n_updates = 1},
                     {std::make_shared<AtUpdate>(2, [](Trainer&) { throw Error("on purpose"); })});
  EXPECT_ERROR(failing.toy.trainer.train(short_run()), "on purpose");
  EXPECT_THAT(failing.tracker->outcomes, ElementsAre("failed"));
  EXPECT_EQ(failing.tracker->updates_of("train_loss"), Updates{1});
}

TEST(TrackRunTest, ATrackerThatCannotStartEndsTheRunBeforeItTrains) {
  const auto first = std::make_shared<MemoryTracker>();
  const auto second = std::make_shared<MemoryTracker>();
  second->fails_to_start = true;
  Toy toy({make<TrackRun>({first, second}, {})});
  EXPECT_ERROR(toy.trainer.train(short_run()), "no room");
  EXPECT_EQ(toy.trainer.num_updates(), 0);
  EXPECT_THAT(first->outcomes, ElementsAre("failed"));
  EXPECT_TRUE(second->outcomes.empty());
}

TEST(TrackRunTest, ATrackerThatFailsLaterIsReportedOnceWithoutABacktraceAndDisabled) {
  const auto failing = std::make_shared<MemoryTracker>();
  const auto other = std::make_shared<MemoryTracker>();
  failing->fails_at_update = 3;
  Toy toy({make<TrackRun>({failing, other}, {.every_n_updates = 1})});
  EXPECT_EQ(toy.trainer.train(short_run()).num_updates, 8);
  EXPECT_THAT(toy.trainer.lines, ElementsAre(AllOf(StartsWith("ERROR: a tracker failed"),
                                                   HasSubstr("disk full"), Not(HasSubstr("#")))));
  EXPECT_EQ(failing->updates_of("train_loss"), (Updates{1, 2}));
  EXPECT_TRUE(failing->outcomes.empty());
  EXPECT_EQ(other->updates_of("train_loss"), (Updates{1, 2, 3, 4, 5, 6, 7, 8}));

  failing->fails_at_update = 1'000'000;
  toy.trainer.train(short_run());
  EXPECT_THAT(failing->outcomes, ElementsAre("finished"));
}

TEST(TrackRunTest, AFailingTrackerDoesNotFailAnEvaluationAfterATraining) {
  const auto failed = std::make_shared<MemoryTracker>();
  const auto fails_to_start = std::make_shared<MemoryTracker>();
  const auto other = std::make_shared<MemoryTracker>();
  failed->fails_at_update = 3;
  Toy toy({make<TrackRun>({failed, fails_to_start, other}, {.every_n_updates = 1})});
  toy.trainer.train(short_run());
  failed->fails_to_start = fails_to_start->fails_to_start = true;
  EXPECT_EQ(toy.trainer.evaluate({.dataset = toy_data(4)}).count("evaluation_loss"), 1U);
  EXPECT_THAT(toy.trainer.lines, Contains(StartsWith("ERROR: a tracker failed")).Times(2));
  EXPECT_THAT(other->outcomes, ElementsAre("finished", "finished"));
}

TEST(TrackRunTest, OnlyTheMainProcessTracks) {
  const auto tracker = std::make_shared<MemoryTracker>();
  Toy toy({make<TrackRun>({tracker}, {.every_n_updates = 1, .histograms_every_n_epochs = 1})}, 0.1,
          {.device = "cpu", .process_group = pretended_group(1, 2)});
  ASSERT_FALSE(toy.trainer.accelerator().is_main_process());
  toy.trainer.train(short_run());
  toy.trainer.evaluate({.dataset = toy_data(4)});
  EXPECT_TRUE(tracker->starts.empty() && tracker->outcomes.empty());
  EXPECT_TRUE(tracker->points.empty() && tracker->histograms.empty());
}

TEST(TrackRunTest, TensorBoardHasEveryRecordOfATrainedAndEvaluatedRun) {
  const TemporaryFolder folder;
  const auto memory = std::make_shared<MemoryTracker>();
  Toy toy({make<TrackRun>({memory, make<TensorBoardTracker>({.directory = folder / "tensorboard"})},
                          {.every_n_updates = 1, .histograms_every_n_epochs = 1})});
  toy.trainer.train(short_run());
  toy.trainer.evaluate({.dataset = toy_data(4)});
  std::map<std::string, std::size_t> expected, counts;
  for (const auto& point : memory->points) ++expected[point.name];

  const auto tensorboard =
      run_python_json("tensorboard_peer.py", {(folder / "tensorboard").string(), "run-1"});
  SKIP_IF_MISSING(tensorboard);
  const nlohmann::json& events = tensorboard["events"];
  for (const auto& [name, values] : events["scalars"].items()) counts[name] = values.size();
  EXPECT_EQ(counts, expected);
  EXPECT_EQ(events["histograms"].size(), 8U);
  EXPECT_EQ(events["hparams"]["lr"], 0.1);
  EXPECT_EQ(events["status"], "STATUS_SUCCESS");
}

TEST(TrackRunTest, KeepsResultsAndComesBeforeSaveTrainingState) {
  const TrackRun callback({});
  EXPECT_TRUE(callback.writes_files());
  EXPECT_GT(callback.phase(), Callback::Phase::act);
  EXPECT_LT(callback.phase(), SaveTrainingState().phase());
}

TEST(TrackRunTest, RejectsInvalidOptionsTrackersAndStates) {
  const auto tracker = std::make_shared<MemoryTracker>();
  EXPECT_ERROR(TrackRun({nullptr}), "tracker 0 is null");
  EXPECT_ERROR((TrackRun({tracker, tracker})), "tracker 1 is the same object as an earlier one");
  EXPECT_ERROR((TrackRun({tracker}, {.every_n_updates = 0})), "every_n_updates is 0");
  EXPECT_ERROR((TrackRun({tracker}, {.histograms_every_n_epochs = 0})),
               "histograms_every_n_epochs is 0");
  EXPECT_ERROR((TrackRun({tracker}, {.flush_seconds = -1.0})), "flush_seconds is -1");
  StateDict state = TrackRun({tracker}).state_dict();
  state.set("records_of_last_update", int64_t{1});
  EXPECT_ERROR(TrackRun({tracker}).load_state_dict(state), "must be a list");
}

}  // namespace
}  // namespace linkboy::testing::track_run_test
