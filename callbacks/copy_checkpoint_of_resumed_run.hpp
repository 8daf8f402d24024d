#pragma once

#include <filesystem>
#include <string>

#include "linkboy/checkpoint/state_dict.hpp"
#include "linkboy/export.hpp"

namespace linkboy {

class Trainer;

/// Copies a checkpoint of the resumed run to `here`, where the current run keeps it, and sets
/// `file` to that path. A callback calls it for each checkpoint that its training state refers to.
///
/// The training state can come from an untrusted source, so only the file's plain name is used: the
/// checkpoint is searched in the folder of `here`, and then in the folder of the training state and
/// in the two folders above it. Symbolic links are not followed.
///
/// @param name  Description of the file in warnings, such as "the best checkpoint of epoch 3".
/// @param file  Path of the checkpoint; the callback must check its name with `require_plain_name`.
/// @param marks  Entries that the file must contain. If they differ, the file was replaced after
///        the training state was saved.
/// @return False if the file is missing, damaged or replaced, or cannot be copied. In this case a
///         warning is printed, `file` does not change, and the callback must stop tracking it.
/// @note Collective.
LINKBOY_API bool copy_checkpoint_of_resumed_run(Trainer& trainer, const std::string& name,
                                                std::filesystem::path& file, const StateDict& marks,
                                                const std::filesystem::path& here);

}  // namespace linkboy
