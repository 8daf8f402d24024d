#pragma once

#include <map>
#include <string>
#include <vector>

#include "linkboy/checkpoint/state_dict.hpp"
#include "linkboy/export.hpp"

namespace linkboy {

/// How the names of a file become those of a model.
struct NameOptions {
  /// Taken off the front of every name, each once, in the order in which the name has them:
  /// "module." (DDP), "_orig_mod." (torch.compile), "model." (Lightning).
  std::vector<std::string> strip_prefixes{};

  /// Old name to new name; a key that ends with '.' renames what begins with it. Applied after
  /// strip_prefixes.
  std::map<std::string, std::string> rename{};

  /// False loads what fits by name, and leaves out the rest on either side. Shapes must fit anyhow.
  bool strict = true;
};

/// What a load without `strict` has left out.
struct LoadReport {
  /// Of the model, not in the file: unchanged.
  std::vector<std::string> missing{};
  /// Of the file, not in the model: not used.
  std::vector<std::string> unexpected{};
};

/// The state under its new names.
/// @throws Error if two entries get one name.
LINKBOY_API StateDict rename_keys(const StateDict& state, const NameOptions& options);

/// The part of `contents` that a dotted path names: "model", "checkpoint.state_dict". A key that
/// itself has dots may be a step of the path. The empty path is all of it.
///
/// @throws Error if there is no such part, or it is no dict; the message lists the keys that are
///         there.
LINKBOY_API StateDict get_nested(const StateDict& contents, const std::string& path);

}  // namespace linkboy
