// Only one run at a time saves in a folder.

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <torch/torch.h>
#include <unistd.h>

#include "checkpoint/atomic_file.hpp"
#include "checkpoint/file_lock.hpp"
#include "linkboy/callbacks/save_best_model.hpp"
#include "linkboy/callbacks/save_training_state.hpp"
#include "linkboy/checkpoint/training_state_folders.hpp"
#include "linkboy/tracking/csv_tracker.hpp"
#include "linkboy/tracking/html_report.hpp"
#include "linkboy/tracking/json_lines_tracker.hpp"
#include "linkboy/tracking/tensorboard_tracker.hpp"
#include "linkboy/tracking/track_run.hpp"
#include "support/at_update.hpp"
#include "support/expect_error.hpp"
#include "support/file_contents.hpp"
#include "support/saved_states.hpp"
#include "support/temporary_folder.hpp"
#include "support/toy.hpp"

namespace linkboy::testing::folder_lock_test {
namespace {

namespace fs = std::filesystem;
using Names = std::vector<std::string>;

TEST(FolderLockTest, ExcludesAnotherProcessUntilItsProcessEnds) {
  const TemporaryFolder folder;
  int ready[2];
  ASSERT_EQ(::pipe(ready), 0);
  const pid_t child = ::fork();
  if (child == 0) {
    const FileDescriptor lock = lock_folder(folder / "states");
    (void)!::write(ready[1], "x", 1);
    ::pause();
    ::_exit(0);
  }
  char byte = 0;
  ASSERT_EQ(::read(ready[0], &byte, 1), 1);
  EXPECT_ERROR(lock_folder(folder / "states"), c10::str("in use by another run (process ", child));
  Toy toy({saving_in(folder / "states")});
  EXPECT_ERROR(toy.trainer.train(epochs_of_two_updates(1)),
               "only one run at a time can save there");
  ::kill(child, SIGKILL);
  ::waitpid(child, nullptr, 0);
  EXPECT_EQ(toy.trainer.train(epochs_of_two_updates(1)).num_epochs, 1);
  ::close(ready[0]);
  ::close(ready[1]);
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

// NFS implements these locks as byte-range locks, which need a file that is open for writing.
TEST(FolderLockTest, LocksFilesThatAreOpenForWriting) {
  const TemporaryFolder folder;
  const auto mode_of = [](const FileDescriptor& file) {
    return ::fcntl(file.get(), F_GETFL) & O_ACCMODE;
  };
  EXPECT_EQ(mode_of(lock_folder(folder.path())), O_RDWR);
  EXPECT_EQ(mode_of(lock_file(folder / "run.csv")), O_RDWR);
  AtomicFile file(folder / "x");
  EXPECT_NE(mode_of(file.commit()), O_RDONLY);
}

TEST(FolderLockTest, ARunReleasesItHoweverItEnds) {
  const TemporaryFolder folder;
  train(folder / "states", 1);
  Toy failed({saving_in(folder / "states"),
              std::make_shared<AtUpdate>(1, [](Trainer&) { throw Error("failed"); })});
  EXPECT_ERROR(failed.trainer.train(epochs_of_two_updates(1)), "failed");
  Toy stopped({saving_in(folder / "states"), stop_at(1)});
  stopped.trainer.train(epochs_of_two_updates(1));
  Toy resumed({saving_in(folder / "states")});
  const auto options = resumed_from(folder / "states" / "latest", epochs_of_two_updates(3));
  EXPECT_EQ(resumed.train(options).num_epochs, 3);
}

TEST(FolderLockTest, AnExceptionReleasesItAfterTheStateInProgressIsWritten) {
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

TEST(FolderLockTest, ARefusedRunDoesNotChangeTheFilesOfTheFirstRun) {
  const TemporaryFolder folder;
  const auto callbacks = [&](std::shared_ptr<Callback> more) {
    const std::vector<std::shared_ptr<Tracker>> trackers{
        std::make_shared<CsvTracker>(folder / "run.csv"),
        std::make_shared<JsonLinesTracker>(folder / "run.jsonl"),
        std::make_shared<HtmlReport>(folder / "run.html"),
        make<TensorBoardTracker>({.directory = folder / "tensorboard"})};
    return CallbackList{make<SaveBestModel>({.path = folder / "best.pt"}),
                        make<TrackRun>(trackers, {.every_n_updates = 1}),
                        saving_in(folder / "states"), std::move(more)};
  };
  bool was_refused = false;
  Toy first(callbacks(std::make_shared<AtUpdate>(5, [&](Trainer&) {
    const auto before = all_bytes_in(folder.path());
    Toy second(callbacks(stop_at(1000)));
    const auto options = resumed_from(folder / "states" / "latest", epochs_of_two_updates(3));
    EXPECT_ERROR(second.train(options), "in use by another run");
    EXPECT_TRUE(second.trainer.run().resumed_from().empty());
    EXPECT_TRUE(all_bytes_in(folder.path()) == before);
    was_refused = true;
  })));
  first.trainer.train(epochs_of_two_updates(3));
  EXPECT_TRUE(was_refused);
}

}  // namespace
}  // namespace linkboy::testing::folder_lock_test
