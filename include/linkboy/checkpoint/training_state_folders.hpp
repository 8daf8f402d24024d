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

/// Returns the newest complete training state in `root`, or nullopt if there is none. The states
/// are the folders `state-NUMBER` that SaveTrainingState writes. Folders whose file was never
/// finished are ignored. If a state's file is damaged, calls `warn` and tries the previous state.
///
/// Reads each file that it checks from beginning to end, in pieces.
/// @throws FileError if a state cannot be read (it may be complete, so an older one might not be
///         the latest); CorruptFileError if there are states and all of them are damaged.
LINKBOY_API std::optional<std::filesystem::path> latest_training_state(
    const std::filesystem::path& root,
    const std::function<void(const std::string&)>& warn = nullptr);

/// Returns the number of the state that SaveTrainingState would write next in `root`: one more than
/// the highest existing number. Also removes unfinished states of killed processes from `root`; a
/// state that is being written stays.
/// @throws FileError if `root` cannot be read; Error if no higher number exists.
LINKBOY_API int64_t next_training_state_number(const std::filesystem::path& root);
/// Returns the folder of a state in `root`, by its number. The folder need not exist.
LINKBOY_API std::filesystem::path training_state_folder(const std::filesystem::path& root,
                                                        int64_t number);
/// Returns the number in the name of a state's folder; nullopt for any other name.
LINKBOY_API std::optional<int64_t> training_state_number(const std::filesystem::path& folder);

/// Creates `root` and locks it for a run that saves there. The lock is held until the last copy of
/// the returned pointer is destroyed or the process ends, in whatever way. The lock is advisory:
/// `flock` on the file `root / ".lock"`, which stays and has no meaning by itself. On a filesystem
/// without locks, nothing is locked.
/// @throws FileError if another run of this or another process has locked it, if `.lock` is a link
///         or not a regular file, or if the folder cannot be created or written to.
LINKBOY_API std::shared_ptr<void> lock_training_states(const std::filesystem::path& root);

}  // namespace linkboy
