#pragma once

#include <filesystem>
#include <string>

#include "linkboy/checkpoint/state_dict.hpp"
#include "linkboy/export.hpp"

namespace linkboy {

class Trainer;

/// If a callback whose training state knows a checkpoint is in a resumed run, copies the
/// file to `here`, where this run keeps it, and sets `file` to that path.
///
/// @param name   What a warning calls the file: "the best checkpoint of epoch 3".
/// @param marks  Entries of the file, as the state knows them. A file with others was replaced
///               after the state was saved.
/// @return False if the file is gone, damaged or replaced, or cannot be copied: a warning is
///         printed, and the callback must forget the file.
/// @note Collective.
LINKBOY_API bool bring_here(Trainer& trainer, const std::string& name, std::filesystem::path& file,
                            const StateDict& marks, const std::filesystem::path& here);

}  // namespace linkboy
