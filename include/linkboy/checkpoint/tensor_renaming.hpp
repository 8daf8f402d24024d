#pragma once

#include <map>
#include <string>
#include <vector>

#include "linkboy/checkpoint/state_dict.hpp"
#include "linkboy/export.hpp"

namespace linkboy {

/// How to convert the names in a file to the names in a model.
struct NameOptions {
  /// Prefixes to remove from the beginning of every name, in any order and each at most once:
  /// "module." (DDP), "_orig_mod." (torch.compile), "model." (Lightning).
  std::vector<std::string> strip_prefixes{};

  /// Map from old to new names, applied after strip_prefixes. A key that ends with '.' renames all
  /// names that begin with it, except those that are keys themselves.
  std::map<std::string, std::string> rename{};

  /// If true, the file and the model must have the same names. If false, loads the entries whose
  /// names match and ignores the others on both sides. Shapes must always match.
  bool strict = true;
};

/// The names that a load with `strict = false` has ignored.
struct LoadReport {
  /// Names in the model that are not in the file; their tensors are unchanged.
  std::vector<std::string> missing{};
  /// Names in the file that are not in the model; their values are not used.
  std::vector<std::string> unexpected{};
};

/// Returns `state` with its names converted.
/// @throws Error if two entries get the same name.
[[nodiscard]] LINKBOY_API StateDict rename_keys(const StateDict& state, const NameOptions& options);

/// Returns the part of `contents` at a dotted path, such as "model" or "checkpoint.state_dict". The
/// keys in the path may themselves contain dots. If the path is empty, returns all of `contents`.
///
/// @throws Error if the part does not exist (the message lists the existing keys) or is not a dict.
LINKBOY_API StateDict get_nested(const StateDict& contents, const std::string& path);

}  // namespace linkboy
