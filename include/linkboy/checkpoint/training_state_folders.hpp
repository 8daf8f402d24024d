#pragma once

#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "linkboy/export.hpp"

namespace linkboy {

/// Name of the file in a training state's folder.
inline constexpr const char* kTrainingStateFile = "training_state.pt";

/// Returns the newest complete training state in `root`, or nullopt if there is none. Training
/// states are the folders `state-NUMBER` that SaveTrainingState writes. Folders without a finished
/// file are ignored. If a state's file is damaged, calls `warn` and tries the previous state.
///
/// Each file that it checks is read completely, piece by piece.
/// @throws FileError if `root` or a state cannot be read (such a state may be complete, so an older
///         one might not be the newest); CorruptFileError if there are states and all of them are
///         damaged.
[[nodiscard]] LINKBOY_API std::optional<std::filesystem::path> latest_training_state(
    const std::filesystem::path& root,
    const std::function<void(const std::string&)>& warn = nullptr);

/// Returns the number of the state that SaveTrainingState would write next in `root`: one more than
/// the highest existing number, or 1. Also removes unfinished states of killed processes from
/// `root`, but not a state that is being written.
/// @throws FileError if `root` cannot be read; Error if no higher number exists.
LINKBOY_API int64_t next_training_state_number(const std::filesystem::path& root);
/// Returns the path of the state with this number in `root`. The folder need not exist.
LINKBOY_API std::filesystem::path training_state_folder(const std::filesystem::path& root,
                                                        int64_t number);
/// Returns the number in the name of a state's folder; nullopt for any other name.
LINKBOY_API std::optional<int64_t> training_state_number(const std::filesystem::path& folder);

/// Creates `root` if it does not exist, and locks it for a run that saves there. The lock is held
/// until the last copy of the returned pointer is destroyed or the process ends, even if it is
/// killed. The lock is advisory: `flock` on the file `root / ".lock"`. The file remains; its
/// existence does not mean that the folder is locked. On a filesystem without locks, nothing is
/// locked.
/// @throws FileError if another run, in this process or another, has locked the folder, if `.lock`
///         is a link or not a regular file, or if the folder cannot be created or written to.
[[nodiscard]] LINKBOY_API std::shared_ptr<void> lock_training_states(
    const std::filesystem::path& root);

}  // namespace linkboy
