// Converts the names in a checkpoint, which may have the prefixes of wrappers such as DDP, and
// finds a part of a checkpoint by its path.

#include "linkboy/checkpoint/tensor_renaming.hpp"

#include <algorithm>
#include <map>

#include "linkboy/error.hpp"
#include "linkboy/util/printable.hpp"

namespace linkboy {
namespace {

std::string new_name(std::string name, const NameOptions& options) {
  // Strips the prefixes in any order: torch.compile around DDP produces "_orig_mod.module.", and
  // DDP around torch.compile the reverse. Strips each prefix once, because a module may have the
  // name of a wrapper: "model.model.weight".
  std::vector<std::string> prefixes = options.strip_prefixes;
  const auto fits = [&name](const std::string& prefix) { return name.starts_with(prefix); };
  for (auto found = prefixes.begin();
       (found = std::find_if(prefixes.begin(), prefixes.end(), fits)) != prefixes.end();) {
    name.erase(0, found->size());
    prefixes.erase(found);
  }
  if (const auto found = options.rename.find(name); found != options.rename.end()) {
    return found->second;
  }
  for (const auto& [from, to] : options.rename) {
    if (from.ends_with('.') && name.starts_with(from)) return to + name.substr(from.size());
  }
  return name;
}

}  // namespace

StateDict rename_keys(const StateDict& state, const NameOptions& options) {
  std::map<std::string, std::string> origins;
  StateDict result;
  for (const auto& [name, value] : state.entries()) {
    const std::string changed = new_name(name, options);
    const auto [origin, is_new] = origins.emplace(changed, name);
    LINKBOY_CHECK(is_new, "both ", quote_name(origin->second), " and ", quote_name(name),
                  " become ", quote_name(changed),
                  "; names must remain unique. Strip fewer prefixes or rename fewer names.");
    result.set(changed, value);
  }
  return result;
}

StateDict get_nested(const StateDict& contents, const std::string& path) {
  if (path.empty()) return contents;
  for (std::size_t dot = path.find('.');; dot = path.find('.', dot + 1)) {
    const std::string key = path.substr(0, dot);
    if (contents.contains(key)) {
      const std::string rest = dot == std::string::npos ? "" : path.substr(dot + 1);
      return get_nested(contents.get_dict(key), rest);
    }
    if (dot == std::string::npos) break;
  }
  contents.at(path);  // throws and lists the keys
  return {};
}

}  // namespace linkboy
