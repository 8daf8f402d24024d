// Tests of a power failure at any time. The test records all calls of a run that change files.
// After each call, it creates states that the disk could be in. Only the guarantees of POSIX count:
// the bytes of a file are on the disk after the file's fsync, and the names in a folder after the
// folder's fsync. Anything that has not been synced may be there or not.

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <random>
#include <set>

#include "linkboy/callbacks/save_training_state.hpp"
#include "linkboy/checkpoint/checkpoint.hpp"
#include "linkboy/checkpoint/training_state_folders.hpp"
#include "support/file_calls.hpp"
#include "support/file_contents.hpp"
#include "support/temporary_folder.hpp"
#include "support/toy.hpp"

namespace linkboy::testing::crash_states_test {
namespace {

namespace fs = std::filesystem;
using Kind = FileCall::Kind;

std::string folder_of(const std::string& path) { return fs::path(path).parent_path().string(); }

/// Returns which of the first `count` calls are guaranteed to be on the disk.
std::vector<bool> synced_calls(const std::vector<FileCall>& calls, std::size_t count) {
  std::vector<bool> is_synced(count, false);
  for (std::size_t i = 0; i < count; ++i) {
    for (std::size_t j = i + 1; j < count && !is_synced[i]; ++j) {
      const FileCall& later = calls[j];
      if (calls[i].kind == Kind::write) {
        is_synced[i] = later.kind == Kind::sync_file && later.file == calls[i].file;
      } else {
        is_synced[i] = later.kind == Kind::sync_folder && later.path == folder_of(calls[i].path);
      }
    }
  }
  return is_synced;
}

/// The files on a disk after the calls that have reached it.
class Disk {
 public:
  void apply(const FileCall& call) {
    switch (call.kind) {
      case Kind::make_folder:
        folders_.insert(call.path);
        break;
      case Kind::make_file:
        files_[call.path] = call.file;
        break;
      case Kind::write:
        bytes_[call.file] += call.data;
        break;
      case Kind::rename:
        files_.erase(call.path);
        files_[call.to] = call.file;
        break;
      case Kind::remove:
        files_.erase(call.path);
        folders_.erase(call.path);
        break;
      default:
        break;
    }
  }

  void make_in(const fs::path& root) const {
    for (const std::string& folder : folders_) {
      if (is_reachable(folder)) fs::create_directories(root / folder);
    }
    for (const auto& [path, file] : files_) {
      if (is_reachable(path)) write_bytes(root / path, bytes_of(file));
    }
  }

  std::string description() const {
    std::string text = "folders:";
    for (const std::string& folder : folders_) text += " " + folder;
    text += "; files: ";
    for (const auto& [path, file] : files_) {
      text += c10::str(path, " (", bytes_of(file).size(), " bytes) ");
    }
    return text;
  }

 private:
  std::string bytes_of(int file) const {
    const auto found = bytes_.find(file);
    return found == bytes_.end() ? "" : found->second;
  }

  /// False if the name of a folder on the path is lost, because its files are then lost too.
  bool is_reachable(const std::string& path) const {
    const std::string folder = folder_of(path);
    return folder.empty() || (folders_.contains(folder) && is_reachable(folder));
  }

  std::set<std::string> folders_;
  std::map<std::string, int> files_;
  std::map<int, std::string> bytes_;
};

/// Calls `look(disk)` for each tested state of the disk after the first `count` calls.
template <class Look>
void for_each_disk(const std::vector<FileCall>& calls, std::size_t count, Look look) {
  const auto is_synced = synced_calls(calls, count);
  std::vector<std::size_t> open;  // calls that may be lost
  for (std::size_t i = 0; i < count; ++i) {
    if (!is_synced[i] && calls[i].kind != Kind::report) open.push_back(i);
  }
  const auto look_with = [&](const auto& is_there) {
    Disk disk;
    for (std::size_t i = 0; i < count; ++i) {
      if (is_synced[i] || is_there(i)) disk.apply(calls[i]);
    }
    look(disk);
  };
  const auto is_bytes = [&](std::size_t i) { return calls[i].kind == Kind::write; };
  look_with([](std::size_t) { return false; });
  look_with([](std::size_t) { return true; });
  look_with([&](std::size_t i) { return is_bytes(i); });
  look_with([&](std::size_t i) { return !is_bytes(i); });
  // Removals of old states are not synced and add up, so only the newest calls are varied.
  const std::size_t first = open.size() > 6 ? open.size() - 6 : 0;
  for (std::size_t k = first; k < open.size(); ++k) {
    look_with([&](std::size_t i) { return i != open[k]; });
    look_with([&](std::size_t i) { return i == open[k]; });
  }
  std::mt19937 engine(static_cast<unsigned>(count));
  for (int draw = 0; draw < 4; ++draw) {
    std::set<std::size_t> lost;
    for (const std::size_t i : open) {
      if (engine() % 2 == 0) lost.insert(i);
    }
    look_with([&](std::size_t i) { return !lost.contains(i); });
  }
}

/// Runs after the callback that saves, and reports which update has been saved.
class ReportSaves : public Callback {
 public:
  ReportSaves(FileCallRecorder& recorder, const SaveTrainingState& saves, bool is_asynchronous)
      : recorder_(recorder), saves_(saves), is_asynchronous_(is_asynchronous) {
    set_phase(Callback::Phase::profile);
  }
  void on_train_update_end(Trainer& trainer) override {
    EXPECT_EQ(saves_.num_failures(), 0);
    if (is_asynchronous_) trainer.wait_for_saves();
    recorder_.report(trainer.num_updates());
  }

 private:
  FileCallRecorder& recorder_;
  const SaveTrainingState& saves_;
  bool is_asynchronous_;
};

int64_t num_updates_in(const fs::path& state) {
  const StateDict saved = read_checkpoint(state / kTrainingStateFile);
  return saved.get_dict("training_state").get_int("num_updates");
}

class CrashStatesTest : public ::testing::TestWithParam<bool> {};

TEST_P(CrashStatesTest, TheNewestStateIsCompleteAndAtLeastAsNewAsReported) {
  const TemporaryFolder folder;
  std::vector<FileCall> calls;
  {
    FileCallRecorder recorder(folder.path());
    const auto save = make<SaveTrainingState>({.directory = folder / "run" / "states",
                                               .every_n_updates = 1,
                                               .keep_last = 2,
                                               .asynchronous = GetParam()});
    Toy toy({save, std::make_shared<ReportSaves>(recorder, *save, GetParam())});
    toy.trainer.train({.train_dataset = toy_data(20), .per_device_batch_size = 4, .num_epochs = 1});
    calls = recorder.calls();
  }
  ASSERT_EQ(std::ranges::count(calls, Kind::report, &FileCall::kind), 5);

  int64_t reported = 0;
  int num_disks = 0;
  for (std::size_t count = 1; count <= calls.size(); ++count) {
    if (calls[count - 1].kind == Kind::report) reported = calls[count - 1].report;
    for_each_disk(calls, count, [&](const Disk& disk) {
      const TemporaryFolder crashed;
      disk.make_in(crashed.path());
      ++num_disks;
      const fs::path states = crashed / "run" / "states";
      const auto newest = fs::exists(states) ? latest_training_state(states) : std::nullopt;
      const int64_t found = newest ? num_updates_in(*newest) : 0;
      EXPECT_GE(found, reported) << "after call " << count << " of " << calls.size() << ": "
                                 << disk.description();
    });
  }
  EXPECT_GT(num_disks, 200);
}

INSTANTIATE_TEST_SUITE_P(All, CrashStatesTest, ::testing::Bool(), [](const auto& info) {
  return info.param ? "asynchronous" : "synchronous";
});

}  // namespace
}  // namespace linkboy::testing::crash_states_test
