// Folders of training states: whose states are in them, what a run may remove, what it must not
// pass over; and that a state holds all that is trained.

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <torch/torch.h>
#include <unistd.h>

#include <array>
#include <fstream>
#include <limits>
#include <thread>

#include "checkpoint/atomic_file.hpp"
#include "checkpoint/file_lock.hpp"
#include "linkboy/callbacks/lambda_callback.hpp"
#include "linkboy/callbacks/model_ema.hpp"
#include "linkboy/callbacks/save_best_model.hpp"
#include "linkboy/callbacks/save_predictions.hpp"
#include "linkboy/callbacks/save_training_state.hpp"
#include "linkboy/callbacks/track_run.hpp"
#include "linkboy/checkpoint/checkpoint.hpp"
#include "linkboy/checkpoint/training_state_folders.hpp"
#include "linkboy/fine_tuning/lr_finder.hpp"
#include "linkboy/tracking/csv_tracker.hpp"
#include "linkboy/tracking/html_report.hpp"
#include "linkboy/tracking/json_lines_tracker.hpp"
#include "linkboy/tracking/mlflow_tracker.hpp"
#include "linkboy/tracking/tensorboard_tracker.hpp"
#include "support/at_update.hpp"
#include "support/expect_error.hpp"
#include "support/file_contents.hpp"
#include "support/file_size_limit.hpp"
#include "support/temporary_folder.hpp"
#include "support/toy.hpp"

namespace linkboy::testing::training_state_ownership_test {
namespace {

namespace fs = std::filesystem;

TrainOptions epochs_of_two_updates(int64_t num_epochs) {
  return {.train_dataset = toy_data(8),
          .num_epochs = num_epochs,
          .eval_dataset = toy_data(6),
          .per_device_batch_size = 4};
}

std::shared_ptr<SaveTrainingState> saving_in(const fs::path& folder, int64_t keep = 2) {
  return make<SaveTrainingState>({.directory = folder, .every_n_epochs = 1, .keep_last = keep});
}

/// The last epoch that a run is trained to, and where it saves.
void train(const fs::path& folder, int64_t num_epochs, const std::optional<fs::path>& from = {},
           int64_t keep = 2) {
  Toy toy({saving_in(folder, keep)});
  TrainOptions options = epochs_of_two_updates(num_epochs);
  options.resume_from = from;
  toy.trainer.train(options);
}

/// Names of the states in a folder, oldest first.
std::vector<std::string> states_in(const fs::path& folder) {
  std::vector<std::string> names;
  for (const auto& entry : fs::directory_iterator(folder)) {
    if (fs::exists(entry.path() / kTrainingStateFile)) {
      names.push_back(entry.path().filename().string());
    }
  }
  std::sort(names.begin(), names.end());
  return names;
}

using Names = std::vector<std::string>;

TEST(TrainingStatesTest, ARunResumedIntoAnotherFolderKeepsWhatItSavesThere) {
  for (const int64_t keep : {1, 2, 3}) {
    SCOPED_TRACE(keep);
    const TemporaryFolder folder;
    train(folder / "old", 2, {}, keep);
    const Names before = states_in(folder / "old");
    train(folder / "new", 3, folder / "old", keep);
    EXPECT_EQ(states_in(folder / "new"), Names{"state-00000001"});
    EXPECT_EQ(states_in(folder / "old"), before);
    EXPECT_TRUE(latest_training_state(folder / "new"));
  }
}

TEST(TrainingStatesTest, ARunRemovesNoStateOfAnotherRun) {
  const TemporaryFolder folder;
  train(folder / "old", 2);
  train(folder / "new", 1);  // another run's state-00000001
  const std::string bytes = read_bytes(folder / "new" / "state-00000001" / kTrainingStateFile);
  train(folder / "new", 5, folder / "old", 1);
  EXPECT_EQ(read_bytes(folder / "new" / "state-00000001" / kTrainingStateFile), bytes);
}

TEST(TrainingStatesTest, AFreshRunSaysWhichStatesOfAnEarlierRunItDoesNotResume) {
  const TemporaryFolder folder;
  const fs::path states = folder / "states";
  const auto warnings = [&](Toy& toy, const std::optional<fs::path>& from) {
    toy.trainer.lines.clear();
    TrainOptions options = epochs_of_two_updates(3);
    options.resume_from = from;
    toy.trainer.train(options);
    Names found;
    for (const std::string& line : toy.trainer.lines) {
      if (line.starts_with("WARNING: this run does not resume")) found.push_back(line);
    }
    return found;
  };
  Toy first({saving_in(states)});
  EXPECT_EQ(warnings(first, {}), Names{});
  EXPECT_EQ(warnings(first, {}), Names{}) << "they are those of the same program";
  Toy resumed({saving_in(states)});
  EXPECT_EQ(warnings(resumed, states), Names{});
  const Names present = states_in(states);
  Toy fresh({saving_in(states)});
  const Names found = warnings(fresh, {});
  ASSERT_EQ(found.size(), 1U);
  EXPECT_NE(found[0].find(c10::str("the ", present.size(), " training states")), std::string::npos);
  EXPECT_NE(found[0].find("resume from " + (states / present.back()).string()), std::string::npos)
      << found[0];
}

TEST(TrainingStatesTest, ARunRemovesNoStateOfAnotherRunThatHasTheNameOfItsOwn) {
  const TemporaryFolder folder;
  train(folder / "states", 2);
  fs::rename(folder / "states", folder / "moved");
  train(folder / "states", 2);  // another run's states 1 and 2, where this run's were
  const std::string bytes = read_bytes(folder / "states" / "state-00000001" / kTrainingStateFile);
  train(folder / "states", 4, folder / "moved" / "state-00000002", 1);
  EXPECT_EQ(read_bytes(folder / "states" / "state-00000001" / kTrainingStateFile), bytes);
  EXPECT_EQ(states_in(folder / "states"),
            (Names{"state-00000001", "state-00000002", "state-00000004"}));
}

TEST(TrainingStatesTest, ANumberThatIsGivenAgainDoesNotRemoveTheNewState) {
  const TemporaryFolder folder;
  train(folder / "states", 3, {}, 9);
  fs::rename(folder / "states" / "state-00000003", folder / "aside");
  train(folder / "states", 4, folder / "aside", 2);
  EXPECT_EQ(states_in(folder / "states"), (Names{"state-00000002", "state-00000003"}));
  EXPECT_EQ(latest_training_state(folder / "states")->filename(), "state-00000003");
}

TEST(TrainingStatesTest, AStateThatWasRenamedIsKept) {
  const TemporaryFolder folder;
  train(folder / "states", 2);
  fs::rename(folder / "states" / "state-00000002", folder / "states" / "keep");
  train(folder / "states", 5, folder / "states" / "keep");
  EXPECT_TRUE(fs::exists(folder / "states" / "keep" / kTrainingStateFile));
  train(folder / "states", 7, folder / "states" / "latest");
  EXPECT_TRUE(fs::exists(folder / "states" / "keep" / kTrainingStateFile));
  EXPECT_EQ(states_in(folder / "states").size(), 3U);
}

TEST(TrainingStatesTest, NamesThatAreNotOfStatesAreLeftOutOfWhatARunMayRemove) {
  const TemporaryFolder folder;
  const auto save = saving_in(folder / "states");
  StateDict state = save->state_dict();
  c10::impl::GenericList names(c10::AnyType::get());
  for (const char* name : {"keep", "../elsewhere", "state-", "state-1/..", "state-00000001"}) {
    names.push_back(name);
  }
  state.set("saved", names);
  save->load_state_dict(state);
  const StateDict loaded = save->state_dict();
  const auto kept = loaded.get_list("saved");
  ASSERT_EQ(kept.size(), 1U);
  EXPECT_EQ(kept.front().toStringRef(), "state-00000001");
}

TEST(TrainingStatesTest, EachOfTwoCallbacksRemovesItsOwnOldStates) {
  const TemporaryFolder folder;
  const auto second = saving_in(folder / "second");
  second->set_name("second");
  Toy toy({saving_in(folder / "first"), second});
  toy.trainer.train(epochs_of_two_updates(5));
  EXPECT_EQ(states_in(folder / "first"), (Names{"state-00000004", "state-00000005"}));
  EXPECT_EQ(states_in(folder / "second"), (Names{"state-00000004", "state-00000005"}));
}

TEST(TrainingStatesTest, AskingForTheNextNumberLeavesAStateInProgressAlone) {
  const TemporaryFolder folder;
  const fs::path state = folder / "states" / "state-00000001";
  AtomicFile file(state / kTrainingStateFile);
  file.flush();
  EXPECT_EQ(next_training_state_number(folder / "states"), 2);
  file.commit();
  EXPECT_TRUE(fs::exists(state / kTrainingStateFile));
}

TEST(TrainingStatesTest, AStateOfAStopInAnEvaluationIsRemovedInTimeAsWell) {
  class StopInEvaluation : public Callback {
   public:
    void on_eval_step_end(Trainer& trainer, const Batch&, const StepOutput&) override {
      trainer.request_stop();
    }
  };
  const TemporaryFolder folder;
  Toy first({saving_in(folder / "states", 1), std::make_shared<StopInEvaluation>()});
  first.trainer.train(epochs_of_two_updates(4));
  EXPECT_EQ(states_in(folder / "states"), Names{"state-00000001"});
  train(folder / "states", 4, folder / "states" / "latest", 1);
  EXPECT_EQ(states_in(folder / "states"), Names{"state-00000005"});
}

TEST(TrainingStatesTest, ARunThatHasNothingLeftToDoSavesNothing) {
  const TemporaryFolder folder;
  train(folder / "states", 2);
  const Names before = states_in(folder / "states");
  train(folder / "states", 2, folder / "states" / "latest");
  EXPECT_EQ(states_in(folder / "states"), before);
}

TEST(TrainingStatesTest, AStateThatCannotBeReadIsNotPassedOver) {
  const TemporaryFolder folder;
  train(folder / "states", 2);
  const fs::path newest = folder / "states" / "state-00000002" / kTrainingStateFile;
  fs::remove(newest);
  fs::create_symlink(newest.filename(), newest);  // ELOOP, for every user
  EXPECT_ERROR(latest_training_state(folder / "states"), "cannot read the training state");
  Toy toy({saving_in(folder / "states")});
  TrainOptions options = epochs_of_two_updates(3);
  options.resume_from = folder / "states" / "latest";
  EXPECT_ERROR(toy.trainer.train(options), "name the state to resume from");
  EXPECT_EQ(toy.trainer.num_updates(), 0);
}

TEST(TrainingStatesTest, StatesThatAreAllDamagedAreAnErrorAndNotABeginning) {
  const TemporaryFolder folder;
  train(folder / "states", 2);
  for (const auto& name : states_in(folder / "states")) {
    std::ofstream(folder / "states" / name / kTrainingStateFile) << "not a state";
  }
  int num_warnings = 0;
  EXPECT_ERROR(
      latest_training_state(folder / "states", [&](const std::string&) { ++num_warnings; }),
      "all 2 training states");
  EXPECT_EQ(num_warnings, 2);
}

TEST(TrainingStatesTest, CheckingAStateReadsItInPiecesAndFindsWhatIsMissing) {
  const TemporaryFolder folder;
  const auto file = folder / "large.pt";
  write_checkpoint(file, {{"tensor", torch::arange(300'000)}, {"number", 7}});
  const StateDict values = read_checkpoint(file, {.with_data = false});
  EXPECT_EQ(values.get_int("number"), 7);
  EXPECT_EQ(values.get_tensor("tensor").sizes(), (std::vector<int64_t>{300'000}));
  std::string bytes = read_bytes(file);
  bytes[1'000'000] = static_cast<char>(bytes[1'000'000] ^ 1);
  std::ofstream(file, std::ios::binary) << bytes;
  EXPECT_ERROR(read_checkpoint(file, {.with_data = false}), "has the checksum");
  EXPECT_EQ(
      read_checkpoint(file, {.verify_checksums = false, .with_data = false}).get_int("number"), 7);
  fs::resize_file(file, bytes.size() / 2);
  EXPECT_ERROR(read_checkpoint(file, {.with_data = false}), "cut short");
}

TEST(TrainingStatesTest, OtherThingsInTheFolderDoNotEndTheRun) {
  const TemporaryFolder folder;
  fs::create_directories(folder / "states" / "state-8" / "not a file");
  std::ofstream(folder / "states" / "state-7") << "a file";
  train(folder / "states", 2);
  EXPECT_EQ(states_in(folder / "states"), (Names{"state-00000009", "state-00000010"}));
  EXPECT_TRUE(fs::is_regular_file(folder / "states" / "state-7"));
}

TEST(TrainingStatesTest, AFolderWithoutAnotherNumberIsAFailedSave) {
  const TemporaryFolder folder;
  fs::create_directories(folder / "states" / "state-9223372036854775807");
  std::ofstream(folder / "states" / "state-9223372036854775807" / "note") << "stays";
  auto save = saving_in(folder / "states");
  Toy toy({save});
  EXPECT_EQ(toy.trainer.train(epochs_of_two_updates(2)).num_epochs, 2);
  EXPECT_EQ(save->num_failures(), 2);
  EXPECT_TRUE(states_in(folder / "states").empty());
}

TEST(TrainingStatesTest, AnyExceptionOfASaveIsAFailedSave) {
  /// A state that cannot be pickled, and one that throws what is not linkboy's.
  class Unsaveable : public Callback {
   public:
    StateDict state_dict() const override {
      if (is_thrown) throw std::bad_alloc();
      return {{"sparse", torch::zeros({2, 2}).to_sparse()}};
    }
    bool is_thrown = false;
  };
  for (const bool is_thrown : {false, true}) {
    for (const bool is_asynchronous : {false, true}) {
      const TemporaryFolder folder;
      auto save = make<SaveTrainingState>({.directory = folder / "states",
                                           .every_n_updates = 1,
                                           .save_at_end = false,
                                           .asynchronous = is_asynchronous});
      auto unsaveable = std::make_shared<Unsaveable>();
      // The end of an epoch asks for the state as well.
      struct Arm : AtUpdate {
        using AtUpdate::AtUpdate;
      };
      Toy toy({unsaveable,
               std::make_shared<Arm>(1, [&](Trainer&) { unsaveable->is_thrown = is_thrown; }),
               std::make_shared<AtUpdate>(2,
                                          [&](Trainer& trainer) {
                                            unsaveable->is_thrown = false;
                                            trainer.request_stop();
                                          }),
               save});
      EXPECT_EQ(toy.trainer.train(epochs_of_two_updates(5)).num_updates, 2);
      EXPECT_GE(save->num_failures(), 1);
    }
  }
}

TEST(TrainingStatesTest, NegativeOrHugeCountsAreRefusedBeforeAnythingChanges) {
  const TemporaryFolder folder;
  Toy first({saving_in(folder / "states"), stop_at(3)});
  first.trainer.train(epochs_of_two_updates(4));
  const auto file = *latest_training_state(folder / "states") / kTrainingStateFile;
  const StateDict contents = read_checkpoint(file);
  const auto refuse = [&](const char* key, const c10::IValue& value, const char* message) {
    StateDict state = contents.get_dict("training_state");
    state.set(key, value);
    StateDict changed = contents;
    changed.set("training_state", state);
    write_checkpoint(folder / "changed" / kTrainingStateFile, changed);
    Toy toy;
    const auto before = copies_of(toy.model->parameters());
    TrainOptions options = epochs_of_two_updates(4);
    options.resume_from = folder / "changed";
    EXPECT_ERROR(toy.trainer.train(options), message);
    EXPECT_TRUE(bit_equal(toy.model->parameters(), before)) << key;
  };
  refuse("num_updates", -1, "must not be negative");
  refuse("micro_step", std::numeric_limits<int64_t>::max() - 1, "that a run can have");
  refuse("version", 3, "reads version 2");
  refuse("ranks", 1, "holds no list");
}

// ---- One run at a time --------------------------------------------------------------------------

TEST(FolderLockTest, HoldsAgainstAnotherProcessAndEndsWithIt) {
  const TemporaryFolder folder;
  int ready[2];
  ASSERT_EQ(::pipe(ready), 0);
  const pid_t child = ::fork();
  if (child == 0) {
    const Descriptor lock = lock_folder(folder / "states");
    (void)!::write(ready[1], "x", 1);
    ::pause();
    ::_exit(0);
  }
  char byte = 0;
  ASSERT_EQ(::read(ready[0], &byte, 1), 1);
  EXPECT_ERROR(lock_folder(folder / "states"), c10::str("in use by another run (process ", child));
  Toy toy({saving_in(folder / "states")});
  EXPECT_ERROR(toy.trainer.train(epochs_of_two_updates(1)), "one run at a time may save there");
  ::kill(child, SIGKILL);
  ::waitpid(child, nullptr, 0);
  EXPECT_EQ(toy.trainer.train(epochs_of_two_updates(1)).num_epochs, 1);
  ::close(ready[0]);
  ::close(ready[1]);
}

TEST(FolderLockTest, WaitsForAsLongAsItIsTold) {
  const TemporaryFolder folder;
  Descriptor first = lock_folder(folder.path());
  EXPECT_ERROR(lock_folder(folder.path(), std::chrono::milliseconds(30)), "in use by another run");
  std::thread release([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(30));
    first.close();
  });
  EXPECT_TRUE(lock_folder(folder.path(), std::chrono::minutes(1)));
  release.join();
}

TEST(FolderLockTest, OverwritesNoOtherFileThroughALink) {
  const TemporaryFolder folder;
  write_bytes(folder / "precious", "a precious file");
  fs::create_directory(folder / "states");
  const fs::path lock = folder / "states" / ".lock";
  for (const bool is_symbolic : {true, false}) {
    const fs::path target = folder / "precious";
    is_symbolic ? fs::create_symlink(target, lock) : fs::create_hard_link(target, lock);
    EXPECT_ERROR(lock_training_states(folder / "states"), lock.string() + "\" is a link");
    EXPECT_EQ(read_bytes(folder / "precious"), "a precious file");
    fs::remove(lock);
  }
  EXPECT_TRUE(lock_training_states(folder / "states"));
}

// NFS makes byte-range locks of them, which need a file that is open for writing.
TEST(FolderLockTest, LocksFilesThatAreOpenForWriting) {
  const TemporaryFolder folder;
  const auto mode_of = [](const Descriptor& file) {
    return ::fcntl(file.get(), F_GETFL) & O_ACCMODE;
  };
  EXPECT_EQ(mode_of(lock_folder(folder.path())), O_RDWR);
  EXPECT_EQ(mode_of(lock_file(folder / "run.csv")), O_RDWR);
  AtomicFile file(folder / "x");
  EXPECT_NE(mode_of(file.commit()), O_RDONLY);
}

TEST(FolderLockTest, ARunReleasesItWhenItEndsInAnyWay) {
  const TemporaryFolder folder;
  Toy finished({saving_in(folder / "states")});
  finished.trainer.train(epochs_of_two_updates(1));
  Toy failed({saving_in(folder / "states"),
              std::make_shared<AtUpdate>(1, [](Trainer&) { throw Error("failed"); })});
  EXPECT_ERROR(failed.trainer.train(epochs_of_two_updates(1)), "failed");
  Toy stopped({saving_in(folder / "states"), stop_at(1)});
  stopped.trainer.train(epochs_of_two_updates(1));
  Toy resumed({saving_in(folder / "states")});
  TrainOptions options = epochs_of_two_updates(3);
  options.resume_from = folder / "states" / "latest";
  EXPECT_EQ(resumed.trainer.train(options).num_epochs, 3);
}

TEST(FolderLockTest, AnExceptionReleasesItWhenTheStateInProgressIsWritten) {
  const TemporaryFolder folder;
  auto fail = std::make_shared<AtUpdate>(2, [](Trainer&) { throw Error("failed"); });
  fail->set_phase(Callback::Phase::profile);
  Toy toy({make<SaveTrainingState>(
               {.directory = folder / "states", .every_n_updates = 1, .asynchronous = true}),
           fail});
  EXPECT_ERROR(toy.trainer.train(epochs_of_two_updates(3)), "failed");
  EXPECT_EQ(states_in(folder / "states"), (Names{"state-00000001", "state-00000002"}));
}

TEST(FolderLockTest, TwoRunsOfAProcessCannotSaveInOneFolderAtTheSameTime) {
  const TemporaryFolder folder;
  Toy outer({saving_in(folder / "states"), std::make_shared<AtUpdate>(1, [&](Trainer&) {
               Toy inner({saving_in(folder / "states")});
               EXPECT_ERROR(inner.trainer.train(epochs_of_two_updates(1)), "in use by another run");
             })});
  EXPECT_EQ(outer.trainer.train(epochs_of_two_updates(1)).num_epochs, 1);
}

TEST(FolderLockTest, ARefusedRunLeavesTheFilesOfTheFirstRunAsTheyAre) {
  const TemporaryFolder folder;
  const auto callbacks = [&](std::shared_ptr<Callback> more) {
    const std::vector<std::shared_ptr<Tracker>> trackers{
        std::make_shared<CsvTracker>(folder / "run.csv"),
        std::make_shared<JsonLinesTracker>(folder / "run.jsonl"),
        std::make_shared<HtmlReport>(folder / "run.html"),
        make<MlflowTracker>({.directory = folder / "mlruns"}),
        make<TensorBoardTracker>({.directory = folder / "tensorboard"})};
    return CallbackList{make<SaveBestModel>({.path = folder / "best.pt"}),
                        make<TrackRun>(trackers, {.every_n_updates = 1}),
                        saving_in(folder / "states"), std::move(more)};
  };
  bool was_refused = false;
  Toy first(callbacks(std::make_shared<AtUpdate>(5, [&](Trainer&) {
    const auto before = all_bytes_in(folder.path());
    Toy second(callbacks(stop_at(1000)));
    TrainOptions options = epochs_of_two_updates(3);
    options.resume_from = folder / "states" / "latest";
    EXPECT_ERROR(second.trainer.train(options), "in use by another run");
    EXPECT_TRUE(second.trainer.resumed_from().empty());
    EXPECT_TRUE(all_bytes_in(folder.path()) == before);
    was_refused = true;
  })));
  first.trainer.train(epochs_of_two_updates(3));
  EXPECT_TRUE(was_refused);
}

// ---- What is in a state -------------------------------------------------------------------------

/// A loss with a temperature that is trained, and a count of its calls.
struct LearnedLossImpl : torch::nn::Module {
  LearnedLossImpl() {
    temperature = register_parameter("temperature", torch::ones({1}));
    num_calls = register_buffer("num_calls", torch::zeros({1}));
  }
  torch::Tensor forward(const torch::Tensor& output, const torch::Tensor& target) {
    if (is_training()) num_calls += 1;
    return torch::nn::functional::cross_entropy(output * temperature, target);
  }
  torch::Tensor temperature;
  torch::Tensor num_calls;
};
TORCH_MODULE(LearnedLoss);

struct WithModules {
  explicit WithModules(CallbackList callbacks = {}) {
    auto parameters = model->parameters();
    parameters.push_back(loss->temperature);
    parameters.push_back(other->weight);
    optimizer = std::make_shared<torch::optim::Adam>(parameters, torch::optim::AdamOptions(0.1));
    trainer = std::make_unique<QuietTrainer>(
        model, loss, optimizer,
        TrainerOptions{.callbacks = std::move(callbacks), .accelerator = {.device = "cpu"}});
    trainer->register_module(other.ptr());
  }
  std::vector<torch::Tensor> tensors() const {
    return {loss->temperature, loss->num_calls, other->weight};
  }

  torch::nn::Sequential model = toy_model();
  LearnedLoss loss;
  torch::nn::Linear other{torch::nn::LinearOptions(1, 1).bias(false)};
  std::shared_ptr<torch::optim::Adam> optimizer;
  std::unique_ptr<QuietTrainer> trainer;
};

TEST(RegisteredModulesTest, AResumedRunTrainsThemFromWhereTheyWere) {
  const TemporaryFolder folder;
  WithModules whole;
  whole.trainer->train(epochs_of_two_updates(3));
  WithModules first({saving_in(folder / "states"), stop_at(3)});
  first.trainer->train(epochs_of_two_updates(3));
  WithModules second;
  {
    const torch::NoGradGuard no_grad;
    for (auto tensor : second.tensors()) tensor.fill_(99);
  }
  TrainOptions options = epochs_of_two_updates(3);
  options.resume_from = folder / "states";
  second.trainer->train(options);
  EXPECT_TRUE(bit_equal({second.loss->temperature, second.loss->num_calls},
                        {whole.loss->temperature, whole.loss->num_calls}));
  EXPECT_TRUE(torch::equal(second.other->weight, first.other->weight));
}

TEST(RegisteredModulesTest, CheckpointsHoldThemUnderTheirNumbers) {
  const TemporaryFolder folder;
  WithModules toy({make<SaveBestModel>({.path = folder / "best.pt"})});
  toy.trainer->train(epochs_of_two_updates(2));
  toy.trainer->save_checkpoint(folder / "x.pt");
  const StateDict modules =
      read_checkpoint(folder / "x.pt").get_dict("registered_modules_state_dict");
  EXPECT_TRUE(torch::equal(modules.get_dict("0").get_tensor("temperature"),
                           toy.loss->temperature.detach()));
  EXPECT_TRUE(modules.get_dict("1").contains("weight"));
  EXPECT_TRUE(read_checkpoint(folder / "best.pt").contains("registered_modules_state_dict"));
  const auto saved = copies_of(toy.tensors());
  WithModules other;
  other.trainer->load_checkpoint(folder / "x.pt", {.registered_modules = false});
  EXPECT_FALSE(bit_equal(other.tensors(), saved));
  other.trainer->load_checkpoint(folder / "x.pt");
  EXPECT_TRUE(bit_equal(other.tensors(), saved));
  Toy without;
  auto optimizer_does_not_fit = CheckpointParts{.optimizer = false};
  without.trainer.load_checkpoint(folder / "x.pt", optimizer_does_not_fit);
  EXPECT_NE(without.trainer.lines.at(0).find("without the registered modules' state"),
            std::string::npos);
}

TEST(RegisteredModulesTest, AFinderPutsThemBack) {
  WithModules toy;
  const auto before = copies_of(toy.tensors());
  find_learning_rate(*toy.trainer, epochs_of_two_updates(1), {.num_updates = 10});
  EXPECT_TRUE(bit_equal(toy.tensors(), before));
}

/// Adds a drift that grows with each step: state of its own.
class DriftingTrainer : public QuietTrainer {
 public:
  using QuietTrainer::QuietTrainer;
  torch::Tensor drift = torch::zeros({1});
  int64_t num_steps = 0;

 protected:
  StepOutput calculate_train_batch_loss(const Batch& batch) override {
    ++num_steps;
    drift.add_(0.1);
    StepOutput output = QuietTrainer::calculate_train_batch_loss(batch);
    output.loss = output.loss * (1 + drift.item<double>());
    return output;
  }
  StateDict state_dict() const override { return {{"drift", drift}, {"num_steps", num_steps}}; }
  void load_state_dict(const StateDict& state) override {
    drift = state.get_tensor("drift");
    num_steps = state.get_int("num_steps");
  }
};

TEST(TrainerStateTest, MembersOfASubclassAreInTheTrainingState) {
  const TemporaryFolder folder;
  const auto run = [&](const CallbackList& callbacks, const std::optional<fs::path>& from) {
    const auto model = toy_model();
    auto trainer = std::make_unique<DriftingTrainer>(
        model, torch::nn::CrossEntropyLoss(), toy_sgd(model),
        TrainerOptions{.callbacks = callbacks, .accelerator = {.device = "cpu"}});
    TrainOptions options = epochs_of_two_updates(3);
    options.resume_from = from;
    trainer->train(options);
    return trainer;
  };
  const auto whole = run({}, {});
  for (const int64_t update : {3, 4}) {
    const fs::path states = folder / std::to_string(update);
    run({saving_in(states), stop_at(update)}, {});
    const auto resumed = run({}, states);
    EXPECT_EQ(resumed->num_steps, 6);
    EXPECT_TRUE(torch::equal(resumed->drift, whole->drift));
    EXPECT_TRUE(bit_equal(resumed->model().parameters(), whole->model().parameters()));
  }
}

// ---- Files that cannot be written ---------------------------------------------------------------

/// Callbacks that write, one after the other, on a disk that is full from the first update on.
TEST(FullDiskTest, WhatCallbacksCannotWriteDoesNotEndTheRun) {
  using Make = std::function<std::shared_ptr<Callback>(const fs::path&)>;
  const std::vector<std::pair<std::string, Make>> writers{
      {"the best model was not saved",
       [](const fs::path& folder) { return make<SaveBestModel>({.path = folder / "best.pt"}); }},
      {"the average of the weights was not saved",
       [](const fs::path& folder) { return make<ModelEma>({.path = folder / "ema.pt"}); }},
      {"the predictions were not saved", [](const fs::path& folder) {
         return make<SavePredictions>({.path = folder / "predictions.pt", .every_n_epochs = 1});
       }}};
  for (const auto& [message, make] : writers) {
    const TemporaryFolder folder;
    std::unique_ptr<FileSizeLimit> full_disk;
    Toy toy({make(folder.path()), std::make_shared<AtUpdate>(1, [&](Trainer&) {
               full_disk = std::make_unique<FileSizeLimit>(16);
             })});
    EXPECT_EQ(toy.trainer.train(epochs_of_two_updates(2)).num_epochs, 2);
    full_disk.reset();
    EXPECT_TRUE(
        std::any_of(toy.trainer.lines.begin(), toy.trainer.lines.end(),
                    [&](const std::string& line) { return line.starts_with("ERROR: " + message); }))
        << message;
    EXPECT_TRUE(folder.names().empty());
  }
}

TEST(SaveBestModelResumedTest, ABestCheckpointThatIsGoneDoesNotEndTheRun) {
  const TemporaryFolder folder;
  auto save = make<SaveBestModel>({.path = folder / "best.pt"});
  auto states = saving_in(folder / "states");
  Toy toy({save, states, std::make_shared<AtUpdate>(4, [&](Trainer&) {
             fs::remove(folder / "best.pt");
             fs::create_directories(folder / "best.pt" / "in the way");
           })});
  EXPECT_EQ(toy.trainer.train(epochs_of_two_updates(2)).num_epochs, 2);
  EXPECT_EQ(states_in(folder / "states").size(), 2U);
}

TEST(SaveBestModelResumedTest, ARunResumedWithAnotherPathKeepsTheBestSoFar) {
  const TemporaryFolder folder;
  const auto run = [&](const std::string& name, int64_t num_epochs, bool is_resumed) {
    auto best = make<SaveBestModel>({.path = folder / name / "best.pt",
                                     .save_top_k = 2,
                                     .monitor = "score",
                                     .greater_is_better = true});
    auto ema = make<ModelEma>({.decay = 0.5,
                               .path = folder / name / "ema.pt",
                               .monitor = "score",
                               .greater_is_better = true});
    auto score = make<LambdaCallback>({.on_training_run_epoch_end = [](Trainer& trainer) {
      RunHistory& history = trainer.run_history();
      constexpr std::array kScores{1.0, 5.0, 2.0, 3.0, 4.0, 0.0};
      history.update_metric("score",
                            kScores.at(static_cast<std::size_t>(history.current_epoch() - 1)));
    }});
    score->set_phase(Callback::Phase::measure);
    auto toy =
        std::make_unique<Toy>(CallbackList{score, ema, best, saving_in(folder / name / "states")});
    TrainOptions options = epochs_of_two_updates(num_epochs);
    if (is_resumed) options.resume_from = folder / "old" / "states";
    toy->trainer.train(options);
    return std::pair{best->saved().front(), std::move(toy)};
  };
  const auto [whole, whole_toy] = run("whole", 6, false);
  EXPECT_EQ(whole.epoch, 2);
  run("old", 3, false);
  const auto [best, toy] = run("new", 6, true);
  EXPECT_EQ(best.epoch, whole.epoch);
  EXPECT_EQ(best.value, whole.value);
  EXPECT_EQ(best.path.parent_path(), folder / "new");
  EXPECT_TRUE(bit_equal(toy->model->parameters(), whole_toy->model->parameters()));
  EXPECT_EQ(read_checkpoint(folder / "new" / "ema.pt").get_int("epoch"),
            read_checkpoint(folder / "whole" / "ema.pt").get_int("epoch"));
}

}  // namespace
}  // namespace linkboy::testing::training_state_ownership_test
