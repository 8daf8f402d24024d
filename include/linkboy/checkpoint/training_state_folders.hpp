#pragma once

#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "linkboy/export.hpp"

namespace linkboy {

/// The file in a training state's folder.
inline constexpr const char* kTrainingStateFile = "training_state.pt";

/// Returns the newest whole training state in `root`, whose states are the folders `state-NUMBER`
/// that SaveTrainingState writes; nothing if there is none. A folder whose file was never finished
/// does not count; one whose file is damaged is told to `warn`, and the one before it is looked at.
///
/// Reads each file that it looks at from beginning to end, in pieces.
/// @throws Error if a state cannot be read (it may be whole, and an older one would not be the
///         latest), or if there are states and all of them are damaged.
LINKBOY_API std::optional<std::filesystem::path> latest_training_state(
    const std::filesystem::path& root,
    const std::function<void(const std::string&)>& warn = nullptr);

/// The folder of the state that SaveTrainingState would write next in `root`: one more than the
/// highest number there. Also removes what killed processes have left unfinished in `root`; a state
/// that is being written stays.
/// @throws Error if `root` cannot be read, or no number is left.
LINKBOY_API int64_t next_training_state_number(const std::filesystem::path& root);
/// The folder of a state in `root`, by its number. It need not exist.
LINKBOY_API std::filesystem::path training_state_folder(const std::filesystem::path& root,
                                                        int64_t number);
/// Returns the number in the name of a state's folder; nothing for any other name.
LINKBOY_API std::optional<int64_t> training_state_number(const std::filesystem::path& folder);

/// Makes `root` and locks it for a run that saves there, until the last copy of what is returned is
/// gone or the process ends, in whatever way. The lock is advisory: `flock` on `root / ".lock"`, a
/// file that stays and means nothing by itself. A filesystem without locks is not locked.
/// @throws Error if another run, of this or another process, has locked it, `.lock` is a link, or
/// the folder cannot be written to.
LINKBOY_API std::shared_ptr<void> lock_training_states(const std::filesystem::path& root);

}  // namespace linkboy
