#pragma once

#include <map>
#include <string>
#include <vector>

#include "linkboy/checkpoint/state_dict.hpp"
#include "linkboy/export.hpp"

namespace linkboy {

/// How the names in a file are converted to those of a model.
struct NameOptions {
  /// Prefixes to remove from the beginning of every name, in any order and each at most once:
  /// "module." (DDP), "_orig_mod." (torch.compile), "model." (Lightning).
  std::vector<std::string> strip_prefixes{};

  /// Map from old to new names, applied after strip_prefixes. A key that ends with '.' renames all
  /// names that begin with it, except those that are keys themselves.
  std::map<std::string, std::string> rename{};

  /// If false, loads the entries whose names match and leaves out the others on either side. Shapes
  /// must match in any case.
  bool strict = true;
};

/// The names that a load without `strict` has left out.
struct LoadReport {
  /// Names in the model that are not in the file; their tensors are unchanged.
  std::vector<std::string> missing{};
  /// Names in the file that are not in the model; they are not used.
  std::vector<std::string> unexpected{};
};

/// Returns the state with its new names.
/// @throws Error if two entries get the same name.
LINKBOY_API StateDict rename_keys(const StateDict& state, const NameOptions& options);

/// Returns the part of `contents` that a dotted path names: "model", "checkpoint.state_dict". A
/// step of the path may be a key that contains dots. If the path is empty, returns all of
/// `contents`.
///
/// @throws Error that lists the existing keys if the part does not exist; Error if it is not a
///         dict.
LINKBOY_API StateDict get_nested(const StateDict& contents, const std::string& path);

}  // namespace linkboy
