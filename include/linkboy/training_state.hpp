#pragma once

#include <filesystem>
#include <functional>
#include <optional>
#include <string>

#include "linkboy/export.hpp"

namespace linkboy {

/// The file in a training state's folder.
inline constexpr const char* kTrainingStateFile = "training_state.pt";

/// The newest whole training state in `root`, whose states are the folders `state-NUMBER` that
/// SaveTrainingState writes; nothing if there is none. A folder whose file was never finished does
/// not count; one whose file is damaged is told to `warn`, and the one before it is looked at.
LINKBOY_API std::optional<std::filesystem::path> latest_training_state(
    const std::filesystem::path& root,
    const std::function<void(const std::string&)>& warn = nullptr);

/// The folder of the state that SaveTrainingState would write next in `root`: one more than the
/// highest number there. Also removes what killed processes have left unfinished in `root`.
/// @throws std::filesystem::filesystem_error if `root` cannot be read.
LINKBOY_API int64_t next_training_state_number(const std::filesystem::path& root);
/// The folder of a state in `root`, by its number. It need not exist.
LINKBOY_API std::filesystem::path training_state_folder(const std::filesystem::path& root,
                                                        int64_t number);

}  // namespace linkboy
