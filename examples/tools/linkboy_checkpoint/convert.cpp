#include <algorithm>
#include <cstdio>
#include <set>
#include <system_error>
#include <utility>

#include <linkboy/checkpoint/checkpoint.hpp>
#include <linkboy/checkpoint/safetensors.hpp>
#include <linkboy/error.hpp>
#include <linkboy/util/printable.hpp>

#include "commands.hpp"
#include "text.hpp"

namespace linkboy_checkpoint {
namespace {

using linkboy::StateDict;

bool holds_strings_only(const c10::IValue& value) {
  if (!value.isGenericDict()) return false;
  const auto dict = value.toGenericDict();
  return std::all_of(dict.begin(), dict.end(), [](const auto& entry) {
    return entry.key().isString() && entry.value().isString();
  });
}

linkboy::SafeTensors to_safetensors(StateDict contents, const Source& from) {
  linkboy::SafeTensors file;
  const auto add_text = [&file](const std::string& name, std::string text) {
    const bool is_new = file.metadata.try_emplace(name, std::move(text)).second;
    LINKBOY_CHECK(is_new, "two values become the metadata ", linkboy::quoted(name),
                  "; names must remain unique. Convert a part of the file with --key.");
  };
  if (contents.contains(kMetadata) && holds_strings_only(contents.at(kMetadata))) {
    const StateDict metadata = contents.get_dict(kMetadata);
    for (const auto& [name, value] : metadata.entries()) {
      add_text(name, value.toStringRef());
    }
    contents.erase(kMetadata);
  }
  std::set<std::string> paths;
  const std::vector<Leaf> leaves = leaves_of(contents, from);
  check_elements(leaves);
  for (const Leaf& leaf : leaves) {
    LINKBOY_CHECK(paths.insert(leaf.path).second, "two values become ", linkboy::quoted(leaf.path),
                  "; names must remain unique. Convert a part of the file with --key.");
    if (leaf.value.isTensor()) {
      file.tensors.emplace_back(leaf.path, leaf.value.toTensor());
    } else {
      add_text(leaf.path, plain_text(leaf.value));
    }
  }
  return file;
}

}  // namespace

void convert(const Source& from, const std::filesystem::path& to, bool force) {
  std::error_code error;
  // A dangling link also counts as an existing file.
  const bool exists = std::filesystem::exists(std::filesystem::symlink_status(to, error));
  LINKBOY_CHECK(force || !exists, linkboy::quoted(to.string()),
                " already exists. Name another file with --to, or replace it with --force.");
  const StateDict contents = read(from);
  if (to.extension() == ".safetensors") {
    linkboy::SafeTensors file;
    try {
      file = to_safetensors(contents, from);
    } catch (const linkboy::Error& cause) {
      throw linkboy::Error("cannot convert " + linkboy::quoted(from.path.string()) + ": " +
                           cause.what());
    }
    linkboy::write_safetensors(to, file.tensors, file.metadata);
    std::printf("%s: %zu tensors, %zu other values as text in the metadata\n",
                linkboy::quoted(to.string()).c_str(), file.tensors.size(), file.metadata.size());
    return;
  }
  const std::vector<Leaf> leaves = leaves_of(contents, from);
  linkboy::write_checkpoint(to, contents);
  const auto num_tensors = static_cast<std::size_t>(std::count_if(
      leaves.begin(), leaves.end(), [](const Leaf& leaf) { return leaf.value.isTensor(); }));
  std::printf("%s: %zu tensors, %zu other values\n", linkboy::quoted(to.string()).c_str(),
              num_tensors, leaves.size() - num_tensors);
}

}  // namespace linkboy_checkpoint
