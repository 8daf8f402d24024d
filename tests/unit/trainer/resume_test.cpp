// A run that is stopped and resumed is the uninterrupted run: states in time, in order, on trouble.

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <csignal>
#include <fstream>
#include <sstream>
#include <thread>

#include "checkpoint/background_job.hpp"
#include "linkboy/callbacks/save_training_state.hpp"
#include "linkboy/callbacks/stop_on_signal.hpp"
#include "linkboy/checkpoint/checkpoint.hpp"
#include "linkboy/checkpoint/training_state_folders.hpp"
#include "linkboy/schedulers/cosine_scheduler.hpp"
#include "support/at_update.hpp"
#include "support/expect_error.hpp"
#include "support/file_contents.hpp"
#include "support/temporary_folder.hpp"
#include "support/toy.hpp"

namespace linkboy::testing::resume_test {
namespace {

namespace fs = std::filesystem;

/// An average of the weights, and the loss of each update: state that a resumed run must have.
class Average : public Callback {
 public:
  void on_train_step_end(Trainer&, const Batch&, const StepOutput& output) override {
    losses.push_back(output.loss.item<double>());
  }
  void on_train_update_end(Trainer& trainer) override {
    const torch::NoGradGuard no_grad;
    const auto weight = trainer.model().parameters().front();
    average_ = average_.defined() ? average_ * 0.9 + weight * 0.1 : weight.clone();
  }
  StateDict state_dict() const override {
    StateDict state;
    if (average_.defined()) state.set("average", average_);
    return state;
  }
  void load_state_dict(const StateDict& state) override { average_ = state.get_tensor("average"); }

  std::vector<double> losses;

 private:
  torch::Tensor average_;
};

constexpr int64_t kUpdates = 40;

/// Dropout, batch norm, shuffling, two workers, accumulation and a cosine: all that has a state.
struct Rehearsal {
  explicit Rehearsal(int64_t last_update, CallbackList more = {},
                     Precision precision = Precision::fp32) {
    torch::manual_seed(3);
    namespace nn = torch::nn;
    model =
        nn::Sequential(nn::Linear(4, 8), nn::BatchNorm1d(8), nn::Dropout(0.5), nn::Linear(8, 3));
    CallbackList callbacks{stop_at(last_update), average};
    callbacks.insert(callbacks.end(), more.begin(), more.end());
    trainer = std::make_unique<QuietTrainer>(
        model, nn::CrossEntropyLoss(),
        std::make_shared<torch::optim::AdamW>(model->parameters(),
                                              torch::optim::AdamWOptions(0.01)),
        TrainerOptions{.callbacks = callbacks,
                       .accelerator = {.device = "cpu", .precision = precision}});
    options = {.train_dataset = toy_data(14),
               .num_epochs = kUpdates / 4,
               .eval_dataset = toy_data(6),
               .per_device_batch_size = 2,
               .gradient_accumulation_steps = 2,
               .create_scheduler_fn =
                   cosine({.warmup_updates = 0.5 * placeholders::num_updates_per_epoch})};
    options.train_dataloader_options.num_workers = 2;
  }

  torch::nn::Sequential model;
  std::shared_ptr<Average> average = std::make_shared<Average>();
  std::unique_ptr<QuietTrainer> trainer;
  TrainOptions options;
};

TEST(ResumeTest, FromEveryUpdateTheRestIsTheUninterruptedRunInEveryBit) {
  const TemporaryFolder folder;
  Rehearsal whole(kUpdates + 1);
  whole.trainer->train(whole.options);
  ASSERT_EQ(whole.trainer->num_updates(), kUpdates);
  whole.trainer->save_training_state(folder / "whole");
  const std::string expected = read_bytes(folder / "whole" / kTrainingStateFile);
  // Weights, optimizer, scheduler, generators, history, place in the data, callbacks.
  ASSERT_GT(expected.size(), 5000U);

  for (int64_t k = 1; k < kUpdates; ++k) {
    SCOPED_TRACE(k);
    Rehearsal first(k);
    EXPECT_EQ(first.trainer->train(first.options).num_updates, k);
    first.trainer->save_training_state(folder / "stopped");
    Rehearsal second(kUpdates + 1);
    torch::manual_seed(static_cast<uint64_t>(k));  // what the process has drawn must not matter
    second.options.resume_from = folder / "stopped";
    EXPECT_EQ(second.trainer->train(second.options).num_updates, kUpdates);
    auto losses = first.average->losses;
    losses.insert(losses.end(), second.average->losses.begin(), second.average->losses.end());
    EXPECT_EQ(losses, whole.average->losses);
    second.trainer->save_training_state(folder / "resumed");
    EXPECT_EQ(read_bytes(folder / "resumed" / kTrainingStateFile), expected);
  }
}

TEST(ResumeTest, ARunThatANumberOfUpdatesEndedInMidEpochGoesOnToALargerOne) {
  const TemporaryFolder folder;
  Rehearsal first(kUpdates + 1);
  first.options.max_num_updates = 6;  // epochs have 4
  EXPECT_EQ(first.trainer->train(first.options).num_updates, 6);
  first.trainer->save_training_state(folder / "ended");
  Rehearsal second(kUpdates + 1);
  second.options.max_num_updates = 12;
  second.options.allow_changed_schedule_length = true;
  second.options.resume_from = folder / "ended";
  const TrainResult result = second.trainer->train(second.options);
  EXPECT_EQ(result.num_updates, 12);
  EXPECT_EQ(result.num_epochs, 4);  // of 4, 2, 4 and 2 updates
}

bool has_line(const QuietTrainer& trainer, const std::string& start) {
  return std::any_of(trainer.lines.begin(), trainer.lines.end(),
                     [&](const std::string& line) { return line.starts_with(start); });
}

TEST(ResumeTest, ARunThatIsCompleteSaysSo) {
  const TemporaryFolder folder;
  Rehearsal whole(kUpdates + 1);
  whole.trainer->train(whole.options);
  EXPECT_FALSE(has_line(*whole.trainer, "The resumed run is complete"));
  whole.trainer->save_training_state(folder / "whole");
  Rehearsal again(kUpdates + 1);
  again.options.resume_from = folder / "whole";
  EXPECT_EQ(again.trainer->train(again.options).num_updates, kUpdates);
  EXPECT_TRUE(has_line(*again.trainer, c10::str("The resumed run is complete, with ", kUpdates,
                                                " updates in 10 epochs;")));
}

TEST(ResumeTest, AScaleOfGradientsThatOneOfTwoRunsLacksIsNamed) {
  const TemporaryFolder folder;
  const auto make = [&](int64_t last_update, Precision precision) {
    auto run = std::make_unique<Rehearsal>(last_update, CallbackList{}, precision);
    if (last_update > 3) run->options.resume_from = folder / "state";
    run->trainer->train(run->options);
    return run;
  };
  const std::string warning = "WARNING: the training state was saved with";
  make(3, Precision::fp16)->trainer->save_training_state(folder / "state");
  EXPECT_TRUE(
      has_line(*make(4, Precision::fp32)->trainer, warning + " Precision::fp16, but this run"));
  EXPECT_FALSE(has_line(*make(4, Precision::fp16)->trainer, "WARNING"));
  make(3, Precision::bf16)->trainer->save_training_state(folder / "state");
  EXPECT_TRUE(
      has_line(*make(4, Precision::fp16)->trainer, warning + "out Precision::fp16, but this"));
  EXPECT_FALSE(has_line(*make(4, Precision::fp32)->trainer, "WARNING"));
}

TEST(ResumeTest, StatesOfCallbacksThatTheRunDoesNotHaveAreNamed) {
  const TemporaryFolder folder;
  const auto named = std::make_shared<Average>();
  named->set_name("the second average");
  Rehearsal first(3, {named});
  first.trainer->train(first.options);
  first.trainer->save_training_state(folder / "state");
  Rehearsal second(4);
  second.options.resume_from = folder / "state";
  second.trainer->train(second.options);
  EXPECT_TRUE(has_line(*second.trainer,
                       "WARNING: the training state has the states of callbacks that this run does "
                       "not have: the second average;"));
  Rehearsal same(4, {named});
  same.options.resume_from = folder / "state";
  same.trainer->train(same.options);
  EXPECT_FALSE(has_line(*same.trainer, "WARNING"));
}

TEST(ResumeTest, AStopInAnEvaluationSavesTheUpdateBeforeIt) {
  class StopInEvaluation : public Callback {
   public:
    void on_eval_step_start(Trainer& trainer) override {
      if (trainer.run_history().current_epoch() == 2) trainer.request_stop();
    }
  };
  const TemporaryFolder folder;
  Rehearsal whole(kUpdates + 1);
  whole.trainer->train(whole.options);
  auto save = make<SaveTrainingState>({.directory = folder / "states"});
  Rehearsal first(kUpdates + 1, {std::make_shared<StopInEvaluation>(), save});
  EXPECT_EQ(first.trainer->train(first.options).num_updates, 8);
  Rehearsal second(kUpdates + 1);
  second.options.resume_from = folder / "states" / "latest";
  second.trainer->train(second.options);
  EXPECT_TRUE(bit_equal(whole.model->parameters(), second.model->parameters()));
  for (const char* metric : {"train_loss_epoch", "eval_loss_epoch"}) {
    EXPECT_EQ(whole.trainer->run_history().get_metric_values(metric),
              second.trainer->run_history().get_metric_values(metric));
  }
}

class SaveTrainingStateTest : public ::testing::Test {
 protected:
  std::shared_ptr<SaveTrainingState> make(SaveTrainingStateOptions options) {
    options.directory = folder_ / "states";
    return std::make_shared<SaveTrainingState>(options);
  }

  /// Numbers of updates in the states that are there, oldest first.
  std::vector<int64_t> updates() {
    std::vector<int64_t> numbers;
    std::vector<fs::path> paths;
    for (const auto& entry : fs::directory_iterator(folder_ / "states")) {
      if (entry.is_directory()) paths.push_back(entry.path());
    }
    std::sort(paths.begin(), paths.end());
    for (const auto& path : paths) {
      const auto state = read_checkpoint(path / kTrainingStateFile).get_dict("training_state");
      numbers.push_back(state.get_int("num_updates"));
    }
    return numbers;
  }

  TemporaryFolder folder_;
};

TEST_F(SaveTrainingStateTest, SavesAtTheEndOnlyByDefault) {
  Rehearsal run(6, {make({})});
  run.trainer->train(run.options);
  EXPECT_EQ(updates(), (std::vector<int64_t>{6}));
}

TEST_F(SaveTrainingStateTest, SavesEveryNUpdatesAndKeepsTheLast) {
  for (bool asynchronous : {false, true}) {
    SCOPED_TRACE(asynchronous);
    Rehearsal run(11, {make({.every_n_updates = 3, .keep_last = 2, .asynchronous = asynchronous})});
    run.trainer->train(run.options);
    EXPECT_EQ(updates(), (std::vector<int64_t>{9, 11}));
    for (const auto& entry : fs::directory_iterator(folder_ / "states")) {
      if (!entry.is_directory()) continue;
      fs::remove(entry.path() / kTrainingStateFile);
      fs::remove(entry.path());
    }
  }
}

TEST_F(SaveTrainingStateTest, SavesEveryNEpochsAndMinutes) {
  {
    Rehearsal run(kUpdates + 1, {make({.every_n_epochs = 4, .keep_last = 9})});
    run.trainer->train(run.options);
    EXPECT_EQ(updates(), (std::vector<int64_t>{16, 32, 40}));
  }
  Rehearsal run(5, {make({.every_n_minutes = 1e-9, .save_at_end = false, .keep_last = 9})});
  run.trainer->train(run.options);
  EXPECT_EQ(updates(), (std::vector<int64_t>{16, 32, 40, 1, 2, 3, 4, 5}));
}

TEST_F(SaveTrainingStateTest, AResumedRunRemovesTheStatesOfTheRunBefore) {
  const SaveTrainingStateOptions options{.every_n_updates = 2, .keep_last = 2};
  Rehearsal first(5, {make(options)});
  first.trainer->train(first.options);
  EXPECT_EQ(updates(), (std::vector<int64_t>{4, 5}));
  Rehearsal second(9, {make(options)});
  second.options.resume_from = folder_ / "states" / "latest";
  second.trainer->train(second.options);
  EXPECT_EQ(updates(), (std::vector<int64_t>{8, 9}));
  EXPECT_EQ(latest_training_state(folder_ / "states")->filename(), "state-00000006");
}

TEST_F(SaveTrainingStateTest, ANewRunLeavesTheStatesOfOthersAlone) {
  Rehearsal first(5, {make({.every_n_updates = 2})});
  first.trainer->train(first.options);
  Rehearsal second(3, {make({})});
  second.trainer->train(second.options);
  EXPECT_EQ(updates(), (std::vector<int64_t>{4, 5, 3}));
}

TEST_F(SaveTrainingStateTest, IsCalledAfterAllOtherCallbacks) {
  auto save = make({.every_n_updates = 1});
  Rehearsal run(2, {save});
  class CountUpdates : public Callback {
   public:
    void on_train_update_end(Trainer&) override { ++count; }
    StateDict state_dict() const override { return {{"count", count}}; }
    int64_t count = 0;
  };
  run.trainer->callback_handler().add(std::make_shared<CountUpdates>());
  EXPECT_EQ(run.trainer->callback_handler().callbacks().back(), save);
  run.trainer->train(run.options);
  const auto folder = latest_training_state(folder_ / "states");
  const auto state = read_checkpoint(*folder / kTrainingStateFile).get_dict("training_state");
  const auto callbacks = state.get_dict("callbacks");
  for (const auto& [name, value] : callbacks.entries()) {
    if (name.find("CountUpdates") != std::string::npos) {
      EXPECT_EQ(StateDict::from_ivalue(value, name).get_int("count"), 2);
      return;
    }
  }
  FAIL() << "no state of CountUpdates";
}

TEST_F(SaveTrainingStateTest, ANaNSavesNothing) {
  class Nan : public Callback {
   public:
    void on_train_update_end(Trainer& trainer) override {
      if (trainer.num_updates() == 3) trainer.request_stop(StopReason::nan);
    }
  };
  auto save = make({.every_n_updates = 2});
  Rehearsal run(kUpdates + 1, {std::make_shared<Nan>(), save});
  EXPECT_EQ(run.trainer->train(run.options).reason, StopReason::nan);
  EXPECT_EQ(updates(), (std::vector<int64_t>{2}));
}

TEST_F(SaveTrainingStateTest, AWeightThatIsNotFiniteSavesNothing) {
  class SpoilWeights : public Callback {
   public:
    void on_train_step_start(Trainer& trainer) override {
      const torch::NoGradGuard no_grad;
      if (trainer.num_updates() == 2) trainer.model().parameters().front().fill_(NAN);
    }
  };
  auto save = make({.every_n_updates = 1, .keep_last = 9});
  Rehearsal run(5, {std::make_shared<SpoilWeights>(), save});
  run.trainer->train(run.options);
  EXPECT_EQ(updates(), (std::vector<int64_t>{1, 2}));
  EXPECT_EQ(save->num_failures(), 4);  // the last as the run ends
  const auto& lines = run.trainer->lines;
  EXPECT_TRUE(std::any_of(lines.begin(), lines.end(), [](const std::string& line) {
    return line.starts_with("ERROR: the training state was not saved: \"0.weight\" of the model");
  }));
}

TEST_F(SaveTrainingStateTest, ALossThatIsNotFiniteDoesNotKeepGoodWeightsFromBeingSaved) {
  /// One batch has no finite loss, and trains nothing.
  class OneBadLoss : public Callback {
   public:
    void on_train_step_end(Trainer& trainer, const Batch&, const StepOutput& output) override {
      if (trainer.num_updates() == 2) output.loss.detach().fill_(INFINITY);
    }
    void on_gradients_ready(Trainer& trainer) override {
      if (trainer.num_updates() == 2) trainer.optimizer()->zero_grad();
    }
  };
  auto save = make({.every_n_updates = 1, .keep_last = 9});
  Rehearsal run(5, {std::make_shared<OneBadLoss>(), save});
  run.trainer->model().module()->register_buffer("mask", torch::full({2}, -INFINITY));
  run.trainer->train(run.options);
  EXPECT_EQ(updates(), (std::vector<int64_t>{1, 2, 3, 4, 5}));
  EXPECT_EQ(save->num_failures(), 0);
}

TEST_F(SaveTrainingStateTest, AFailedSaveIsLoudAndTheRunGoesOn) {
  for (bool asynchronous : {false, true}) {
    SCOPED_TRACE(asynchronous);
    auto save = make({.every_n_updates = 10, .asynchronous = asynchronous});
    // In place of the folder of states there is a file, from update 20 until the failure is
    // printed.
    const fs::path root = folder_ / "states";
    const fs::path away = folder_ / "states-away";
    struct Block : AtUpdate {  // a callback's type may be given once, and stop_at is an AtUpdate
      using AtUpdate::AtUpdate;
    };
    const auto block = std::make_shared<Block>(20, [&](Trainer& trainer) {
      trainer.wait_for_saves();  // that of update 10
      fs::rename(root, away);
      std::ofstream(root) << "a file in its place";
    });
    Rehearsal run(kUpdates + 1, {block, save});
    run.trainer->on_print = [&] {
      if (!fs::exists(away)) return;
      fs::remove(root);
      fs::rename(away, root);
    };
    EXPECT_EQ(run.trainer->train(run.options).num_updates, kUpdates);
    EXPECT_EQ(save->num_failures(), 1);
    const auto& lines = run.trainer->lines;
    EXPECT_TRUE(std::any_of(lines.begin(), lines.end(), [](const std::string& line) {
      return line.starts_with("ERROR: the training state was not saved: ");
    }));
    EXPECT_EQ(updates().back(), kUpdates);
  }
}

TEST_F(SaveTrainingStateTest, RejectsBadOptionsAndStates) {
  EXPECT_ERROR(make({.every_n_updates = 0}), "every_n_updates is 0");
  EXPECT_ERROR(make({.every_n_epochs = 0}), "every_n_epochs is 0");
  EXPECT_ERROR(make({.every_n_minutes = 0.0}), "every_n_minutes is 0");
  EXPECT_ERROR(make({.keep_last = 0}), "keep_last is 0");
  EXPECT_ERROR(make({})->load_state_dict({{"saved", 3}}), "it must be a list");
}

TEST_F(SaveTrainingStateTest, UnfinishedAndDamagedStatesAreNotTheLatest) {
  Rehearsal run(7, {make({.every_n_updates = 2, .keep_last = 9})});
  run.trainer->train(run.options);
  const fs::path root = folder_ / "states";
  fs::create_directories(root / "state-00000099");
  std::ofstream(root / "state-00000099" / ".training_state.pt.tmp-1-0") << "half a state";
  fs::create_directories(root / "state-zero");
  EXPECT_EQ(latest_training_state(root)->filename(), "state-00000004");

  std::string bytes = read_bytes(root / "state-00000004" / kTrainingStateFile);
  bytes[bytes.size() / 2] = static_cast<char>(bytes[bytes.size() / 2] ^ 1);
  std::ofstream(root / "state-00000004" / kTrainingStateFile, std::ios::binary) << bytes;
  std::vector<std::string> warnings;
  const auto latest =
      latest_training_state(root, [&](const std::string& line) { warnings.push_back(line); });
  EXPECT_EQ(latest->filename(), "state-00000003");
  ASSERT_EQ(warnings.size(), 1U);
  EXPECT_NE(warnings[0].find("has the checksum"), std::string::npos) << warnings[0];

  EXPECT_EQ(next_training_state_number(root), 100);
  EXPECT_FALSE(fs::exists(root / "state-00000099")) << "what a killed process left is removed";
  EXPECT_EQ(latest_training_state(folder_ / "nowhere"), std::nullopt);
}

TEST_F(SaveTrainingStateTest, LatestWithNothingToResumeStartsFromTheBeginning) {
  Rehearsal run(3);
  run.options.resume_from = folder_ / "states" / "latest";
  EXPECT_EQ(run.trainer->train(run.options).num_updates, 3);
  EXPECT_NE(run.trainer->lines.front().find("Nothing to resume in "), std::string::npos);
}

TEST_F(SaveTrainingStateTest, AFolderOfStatesMeansItsNewest) {
  Rehearsal first(5, {make({.every_n_updates = 2})});
  first.trainer->train(first.options);
  Rehearsal second(7);
  second.options.resume_from = folder_ / "states";
  EXPECT_EQ(second.trainer->train(second.options).num_updates, 7);
  EXPECT_NE(second.trainer->lines.front().find("update 5)"), std::string::npos);
}

TEST_F(SaveTrainingStateTest, ASignalSavesAndIsTold) {
  auto stop = std::make_shared<StopOnSignal>();
  Rehearsal run(kUpdates + 1, {stop, make({})});
  class RaiseOnce : public Callback {
   public:
    void on_train_step_start(Trainer& trainer) override {
      if (trainer.num_updates() == 4 && !std::exchange(done_, true)) std::raise(SIGUSR1);
    }

   private:
    bool done_ = false;
  };
  run.trainer->callback_handler().add(std::make_shared<RaiseOnce>());
  // The update in progress is still made.
  EXPECT_EQ(run.trainer->train(run.options).num_updates, 5);
  EXPECT_EQ(stop->signal(), SIGUSR1);
  EXPECT_EQ(updates(), (std::vector<int64_t>{5}));
}

// ---- In the background
// ---------------------------------------------------------------------------

TEST(BackgroundJobTest, OneAfterTheOtherAndErrorsSurfaceOnce) {
  BackgroundJob job;
  job.wait();
  std::vector<int> order;
  job.start([&] { order.push_back(1); });
  job.start([&] { order.push_back(2); });
  job.wait();
  EXPECT_EQ(order, (std::vector<int>{1, 2}));
  job.start([] { throw Error("full"); });
  EXPECT_ERROR(job.start([&] { order.push_back(3); }), "full");
  job.wait();
  EXPECT_EQ(order.size(), 2U) << "what was not started is not run";
}

TEST(BackgroundJobTest, AFailureThatNobodyWaitedForIsAWarningWithoutTheCallStack) {
  struct KeepWarnings : c10::WarningHandler {
    void process(const c10::Warning& warning) override { text += warning.msg(); }
    std::string text;
  } warnings;
  {
    const c10::WarningUtils::WarningHandlerGuard guard(&warnings);
    BackgroundJob job;
    job.start([] { TORCH_CHECK(false, "no room"); });
  }
  EXPECT_EQ(warnings.text,
            "linkboy: a file that was written in the background is not there: no room");
}

TEST(BackgroundJobTest, ASnapshotHasNothingInCommonWithItsSource) {
  const auto base = torch::arange(6, torch::kFloat).view({2, 3});
  const StateDict source{
      {"base", base}, {"turned", base.t()}, {"list", std::vector<int64_t>{1, 2}}};
  Snapshot snapshot;
  const StateDict copy = snapshot.take(source);
  base.fill_(9);
  EXPECT_TRUE(torch::equal(copy.get_tensor("base"), torch::arange(6, torch::kFloat).view({2, 3})));
  EXPECT_TRUE(torch::equal(copy.get_tensor("turned"), copy.get_tensor("base").t()));
  EXPECT_TRUE(copy.get_tensor("turned").is_alias_of(copy.get_tensor("base")));
  const StateDict later = snapshot.take(source);
  EXPECT_EQ(copy.get_tensor("base")[0][1].item<float>(), 1.0F) << "still held, so not overwritten";
  EXPECT_EQ(later.get_tensor("base")[0][1].item<float>(), 9.0F);
}

TEST(BackgroundJobTest, ASnapshotHasEveryByteOfStoragesOfAllSizes) {
  StateDict source;
  for (const int64_t size : {0, 1, 63, 64, 65, 1'000, 1'048'573, 3'000'001}) {
    const auto bytes = torch::randint(256, {size + 16}, torch::kByte);
    // An offset into memory of another keeps the source off the boundaries.
    source.set(std::to_string(size),
               torch::from_blob(
                   bytes.data_ptr<uint8_t>() + size % 16, {size}, [bytes](void*) {}, torch::kByte));
  }
  const int num_threads = at::get_num_threads();
  for (const int threads : {1, 2, 5}) {
    at::set_num_threads(threads);
    const StateDict copy = Snapshot().take(source);
    for (const auto& [key, value] : source.entries()) {
      EXPECT_TRUE(torch::equal(copy.get_tensor(key), value.toTensor())) << key << ' ' << threads;
    }
  }
  at::set_num_threads(num_threads);
}

TEST(BackgroundJobTest, ALoadWaitsForTheSaveBeforeIt) {
  const TemporaryFolder folder;
  Rehearsal run(3);
  run.trainer->train(run.options);
  const auto saved = copies_of(run.model->parameters());
  run.trainer->save_training_state(folder / "state", {.asynchronous = true});
  {
    const torch::NoGradGuard no_grad;
    for (auto& parameter : run.model->parameters()) parameter.fill_(7);
  }
  EXPECT_TRUE(run.trainer->load_training_state(folder / "state"));
  EXPECT_TRUE(bit_equal(run.model->parameters(), saved));
}

}  // namespace
}  // namespace linkboy::testing::resume_test
