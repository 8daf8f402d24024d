// The calls of TrackRun to its trackers in later and in resumed runs.

#include <gtest/gtest.h>

#include <algorithm>
#include <sstream>

#include "linkboy/callbacks/lambda_callback.hpp"
#include "linkboy/tracking/json_lines_tracker.hpp"
#include "linkboy/tracking/tensorboard_tracker.hpp"
#include "support/file_contents.hpp"
#include "support/memory_tracker.hpp"
#include "support/saved_states.hpp"
#include "support/temporary_folder.hpp"

namespace linkboy::testing::track_run_second_run_test {
namespace {

TEST(TrackRunSecondRunTest, AFurtherTrainIsANewRunUnlessItContinuesTheHistory) {
  TrackedToy run;
  TrainOptions options = short_run(1);
  run.toy.trainer.train(options);
  run.toy.trainer.train(options);
  options.reset_run_history = false;
  run.toy.trainer.train(options);
  ASSERT_EQ(run.tracker->starts.size(), 3U);
  EXPECT_EQ(run.tracker->starts[1].first_update, 0);
  EXPECT_EQ(run.tracker->starts[2].first_update, 4);
  EXPECT_EQ(run.tracker->starts[2].first_epoch, 1);
  EXPECT_EQ(run.tracker->updates_of("train_loss"), (Updates{2, 4, 2, 4, 6, 8}));
  EXPECT_EQ(run.tracker->updates_of("train_loss_epoch"), (Updates{4, 4, 8}));
}

TEST(TrackRunSecondRunTest, EvaluateContinuesTheRecordOfThePreviousRun) {
  TrackedToy run({.every_n_updates = 100, .histograms_every_n_epochs = 1});
  run.toy.trainer.train(short_run());
  run.tracker->points.clear();
  const auto metrics = run.toy.trainer.evaluate({.dataset = toy_data(4)});
  ASSERT_EQ(run.tracker->starts.size(), 2U);
  EXPECT_EQ(run.tracker->starts[1].first_update, 8);
  EXPECT_EQ(run.tracker->starts[1].first_epoch, 2);
  EXPECT_EQ(run.tracker->starts[1].config, run.tracker->starts[0].config);
  EXPECT_EQ(run.tracker->points,
            (std::vector<TrackedPoint>{{"evaluation_loss", 8, 2, metrics.at("evaluation_loss")}}));
}

TEST(TrackRunSecondRunTest, EvaluateDoesNotChangeTheStateOfTheTrainingRunBeforeIt) {
  const TemporaryFolder folder;
  TrackedToy run;
  run.toy.trainer.train(short_run());
  const auto state = [&] { return c10::str(run.callback->state_dict().to_ivalue()); };
  const std::string before = state();
  run.toy.trainer.evaluate({.dataset = toy_data(4)});
  EXPECT_EQ(state(), before);
  run.toy.trainer.save_training_state(folder.path());
  TrackedToy longer;
  longer.toy.trainer.train(resumed_from(folder.path(), short_run(3)));
  EXPECT_EQ(longer.tracker->starts[0].first_update, 8);
  EXPECT_EQ(longer.tracker->updates_of("train_loss_epoch"), Updates{12});
}

TEST(TrackRunSecondRunTest, EvaluateWithoutTrainingIsARun) {
  TrackedToy run;
  const auto metrics = run.toy.trainer.evaluate({.dataset = toy_data(4)});
  EXPECT_EQ(run.tracker->points,
            (std::vector<TrackedPoint>{{"evaluation_loss", 0, 1, metrics.at("evaluation_loss")}}));
  EXPECT_EQ(run.tracker->starts[0].first_update, 0);
  EXPECT_EQ(run.tracker->outcomes, std::vector<std::string>{"finished"});
}

std::vector<TrackedPoint> without_speed(std::vector<TrackedPoint> points) {
  std::erase_if(points, [](const auto& point) { return point.name == "samples_per_second"; });
  return points;
}

/// Returns the record of the killed run up to the point where the resumed run starts, followed by
/// that of the resumed run.
std::vector<TrackedPoint> merged(const MemoryTracker& killed, const MemoryTracker& resumed) {
  std::vector<TrackedPoint> points = killed.points;
  std::erase_if(points, [&](const auto& point) {
    return point.update > resumed.starts.front().first_update;
  });
  points.insert(points.end(), resumed.points.begin(), resumed.points.end());
  return without_speed(points);
}

/// Trains to the end and saves states. Then resumes from each state, as after a kill, and expects
/// the same record.
void expect_same_record_after_resume(SaveTrainingStateOptions saving, int64_t every_n_updates) {
  const TemporaryFolder folder;
  saving.directory = folder.path();
  saving.save_at_end = false;
  saving.keep_last = 100;
  TrackedToy killed({.every_n_updates = every_n_updates},
                    {std::make_shared<SaveTrainingState>(saving)});
  killed.toy.trainer.train(short_run(3));

  const auto states = states_in(folder.path());
  ASSERT_GE(states.size(), 3U);
  for (const std::string& state : states) {
    TrackedToy resumed({.every_n_updates = every_n_updates});
    resumed.toy.trainer.train(resumed_from(folder / state, short_run(3)));
    EXPECT_EQ(merged(*killed.tracker, *resumed.tracker), without_speed(killed.tracker->points))
        << state << ", every " << every_n_updates;
  }
}

TEST(TrackRunSecondRunTest, AResumedRunRecordsEverythingExactlyOnce) {
  for (const int64_t every_n_updates : {1, 3}) {
    expect_same_record_after_resume({.every_n_updates = 1}, every_n_updates);
    expect_same_record_after_resume({.every_n_epochs = 1}, every_n_updates);
  }
}

/// Trains two epochs and saves a state after each.
void train_and_save(CallbackList callbacks, const std::filesystem::path& states) {
  callbacks.push_back(saving_in(states, /*keep=*/100));
  Toy(callbacks).trainer.train(short_run());
}

std::shared_ptr<Callback> tracked_in(const std::filesystem::path& folder) {
  return make<TrackRun>({make<TensorBoardTracker>({.directory = folder / "runs"})},
                        {.name = "same", .every_n_updates = 1});
}

TEST(TrackRunSecondRunTest, AResumedRunContinuesItsOwnRecordDespiteANewerRunOfTheSameName) {
  const TemporaryFolder folder;
  train_and_save({tracked_in(folder.path())}, folder / "older");
  train_and_save({tracked_in(folder.path())}, folder / "newer");
  const auto newer = all_bytes_in(folder / "runs" / "same-2");

  Toy resumed({tracked_in(folder.path())});
  resumed.trainer.train(resumed_from(folder / "older" / "state-00000001", short_run(3)));

  EXPECT_EQ(all_bytes_in(folder / "runs" / "same-2"), newer);
  const auto count_files = [&](const char* name) {
    const std::filesystem::directory_iterator entries(folder / "runs" / name);
    return std::count_if(begin(entries), end(entries), [](const auto& entry) {
      return entry.path().filename().string().starts_with("events.");
    });
  };
  EXPECT_EQ(count_files("same-1"), 2);
  EXPECT_FALSE(std::filesystem::exists(folder / "runs" / "same-3"));
}

TEST(TrackRunSecondRunTest, AResumedRunFindsItsRecordsAfterATrackerWasAdded) {
  const TemporaryFolder folder;
  train_and_save({tracked_in(folder.path())}, folder / "states");
  const auto memory = std::make_shared<MemoryTracker>();
  Toy resumed({std::make_shared<TrackRun>(std::vector<std::shared_ptr<Tracker>>{
      memory, make<TensorBoardTracker>({.directory = folder / "runs"})})});
  resumed.trainer.train(resumed_from(folder / "states" / "state-00000001", short_run(3)));
  EXPECT_EQ(memory->starts[0].place, "");
  EXPECT_TRUE(std::filesystem::exists(folder / "runs" / "same-1"));
  const std::filesystem::directory_iterator runs(folder / "runs");
  EXPECT_EQ(std::distance(begin(runs), end(runs)), 1);
}

/// Trains up to an update, resumes and trains to the end. Expects that the first part has
/// `num_before` lines that contain `text`, and that both parts have them at the beginning.
void expect_lines_to_remain(int64_t update, const std::string& text, std::size_t num_before,
                            std::size_t num_after) {
  const TemporaryFolder folder;
  const auto tracked = [&] {
    return make<TrackRun>({std::make_shared<JsonLinesTracker>(folder / "run.jsonl")},
                          {.every_n_updates = 1, .histograms_every_n_epochs = 1});
  };
  const auto lines = [&] {
    std::istringstream file(read_bytes(folder / "run.jsonl"));
    std::vector<std::string> found;
    for (std::string line; std::getline(file, line);) {
      const bool is_measured = line.find("\"update\":") != std::string::npos;
      if (is_measured && line.find(text) != std::string::npos) found.push_back(line);
    }
    return found;
  };
  TrainOptions options = short_run();
  options.eval_dataset = toy_data(4);
  options.evaluate_before_training = true;
  Toy stopped(
      {stop_at(update), tracked(), make<SaveTrainingState>({.directory = folder / "states"})});
  stopped.trainer.train(options);
  const auto before = lines();
  Toy resumed({tracked()});
  resumed.trainer.train(resumed_from(folder / "states" / "latest", options));
  auto after = lines();
  EXPECT_EQ(before.size(), num_before) << text;
  EXPECT_EQ(after.size(), num_after) << text;
  after.resize(num_before);
  EXPECT_EQ(after, before);
}

TEST(TrackRunSecondRunTest, AResumedRunKeepsTheLinesOfItsUpdateAndThoseBeforeIt) {
  expect_lines_to_remain(3, "\"update\":3,", 1, 1);
  expect_lines_to_remain(1, "initial_eval_loss_epoch", 1, 1);
  expect_lines_to_remain(1, "\"gradients/", 4, 8);
}

TEST(TrackRunSecondRunTest, AStateWithHistogramsOfSparseGradientsResumes) {
  const TemporaryFolder folder;
  const auto train = [&](TrainOptions options) {
    torch::nn::Sequential model(
        torch::nn::Embedding(torch::nn::EmbeddingOptions(9, 4).sparse(true)),
        torch::nn::Linear(4, 3));
    const auto words = torch::arange(4) * 5 % 9;
    options.train_dataset = TensorDataset(words, words % 3);
    options.per_device_batch_size = 4;  // one update per epoch
    const auto tracker = std::make_shared<MemoryTracker>();
    QuietTrainer trainer(model, torch::nn::CrossEntropyLoss(),
                         std::make_shared<torch::optim::SGD>(model->parameters(), 0.1),
                         {.callbacks = {make<TrackRun>({tracker}, {.histograms_every_n_epochs = 1}),
                                        saving_every_update(folder / "states")},
                          .default_callbacks = {}});
    trainer.train(options);
    return tracker->histograms;
  };
  train({.num_epochs = 1});
  const auto histograms = train({.num_epochs = 2, .resume_from = folder / "states" / "latest"});
  EXPECT_EQ(std::count(histograms.begin(), histograms.end(),
                       std::pair<std::string, int64_t>("gradients/0.weight", 2)),
            1);
}

TEST(TrackRunSecondRunTest, AnEvaluationAtTheStartOfAResumedRunIsOfTheEpochInProgress) {
  const TemporaryFolder folder;
  Toy stopped({stop_at(5), make<SaveTrainingState>({.directory = folder.path()})});
  stopped.trainer.train(short_run());
  TrackedToy run({}, {make<LambdaCallback>({.on_train_epoch_start = [](Trainer& trainer) {
                   if (trainer.num_updates() == 5) trainer.evaluate_now({.metric_prefix = "now_"});
                 }})});
  run.toy.trainer.train(resumed_from(folder / "latest", short_run()));
  const TrackedPoint& first = run.tracker->points.front();
  EXPECT_EQ(first.name, "now_eval_loss_epoch");
  EXPECT_EQ(first.epoch, 2);
}

TEST(TrackRunSecondRunTest, AResumedRunWithoutATrackingStateRecordsFromThere) {
  const TemporaryFolder folder;
  Toy plain({stop_at(6), make<SaveTrainingState>({.directory = folder.path()})});
  plain.trainer.train(short_run());
  TrackedToy run;
  run.toy.trainer.train(resumed_from(folder / "latest", short_run()));
  EXPECT_EQ(run.tracker->starts[0].first_update, 6);
  EXPECT_EQ(run.tracker->starts[0].first_epoch, 1);
  EXPECT_EQ(run.tracker->updates_of("train_loss"), Updates{8});
  EXPECT_EQ(run.tracker->updates_of("train_loss_epoch"), Updates{8});
}

}  // namespace
}  // namespace linkboy::testing::track_run_second_run_test
