#pragma once

#include <cstdlib>
#include <filesystem>
#include <string>

#include "linkboy/checkpoint/training_state_folders.hpp"
#include "support/environment_variable.hpp"
#include "support/temporary_folder.hpp"

namespace linkboy::testing {

/// While it exists, temporary folders are created in memory, because syncing training states to the
/// disk takes most of the time of a short run.
struct FoldersInMemory {
  EnvironmentVariable folder{
      "TMPDIR", std::filesystem::is_directory("/dev/shm") ? "/dev/shm" : std::getenv("TMPDIR")};
};

/// An empty folder that always has the same name, because training states contain paths. The
/// previous contents are moved to another folder.
class RunFolder {
 public:
  std::filesystem::path fresh() {
    const std::filesystem::path path = root_ / "run";
    if (std::filesystem::exists(path))
      std::filesystem::rename(path, root_ / ("before-" + std::to_string(num_before_++)));
    std::filesystem::create_directories(path);
    return path;
  }
  std::filesystem::path path() const { return root_ / "run"; }
  /// The folder of the first run.
  std::filesystem::path first() const { return root_ / "before-0"; }
  /// The training state at the end of the first run in this folder.
  std::filesystem::path first_end() const { return first() / "end" / kTrainingStateFile; }
  std::filesystem::path end() const { return path() / "end" / kTrainingStateFile; }

 private:
  FoldersInMemory in_memory_;
  TemporaryFolder root_;
  int num_before_ = 0;
};

}  // namespace linkboy::testing
