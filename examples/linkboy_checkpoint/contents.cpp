#include "contents.hpp"

#include <ATen/core/Dict.h>
#include <ATen/core/List.h>

#include <linkboy/checkpoint.hpp>
#include <linkboy/error.hpp>
#include <linkboy/name_options.hpp>
#include <linkboy/safetensors.hpp>

#include "text.hpp"

namespace linkboy_checkpoint {
namespace {

using linkboy::StateDict;

void add_leaves(const std::string& path, const c10::IValue& value, std::vector<Leaf>& leaves) {
  const auto add_items = [&](c10::ArrayRef<c10::IValue> items) {
    for (std::size_t i = 0; i < items.size(); ++i) {
      add_leaves(path + '.' + std::to_string(i), items[i], leaves);
    }
    return !items.empty();
  };
  bool has_items = false;
  if (value.isGenericDict()) {
    for (const auto& entry : value.toGenericDict()) {
      add_leaves(path + '.' + plain_text(entry.key()), entry.value(), leaves);
      has_items = true;
    }
  } else if (value.isList()) {
    has_items = add_items(value.toListRef());
  } else if (value.isTuple()) {
    has_items = add_items(value.toTupleRef().elements());
  }
  if (!has_items) leaves.push_back({path, value});
}

StateDict read_all(const Source& source) {
  // By the ending as well, so that a damaged file is told what it is.
  const bool is_safetensors =
      source.path.extension() == ".safetensors" || linkboy::is_safetensors(source.path);
  if (!is_safetensors) return linkboy::read_checkpoint(source.path, {.mmap = source.mmap});

  const linkboy::SafeTensors file = linkboy::read_safetensors(source.path, source.mmap);
  StateDict contents(file.tensors);
  if (file.metadata.empty()) return contents;
  LINKBOY_CHECK(!contents.contains(kMetadata), in_quotes(source.path), " has a tensor \"",
                kMetadata,
                "\" and metadata as well, for which this name is needed. Rename the tensor.");
  StateDict metadata;
  for (const auto& [key, value] : file.metadata) metadata.set(key, value);
  contents.set(kMetadata, metadata);
  return contents;
}

StateDict part_of(const StateDict& contents, const std::string& key) {
  try {
    return linkboy::select_part(contents, key);
  } catch (const linkboy::Error&) {
    const std::string prefix = key + '.';
    c10::impl::GenericDict part(c10::AnyType::get(), c10::AnyType::get());
    for (const Leaf& leaf : leaves_of(contents)) {
      if (!leaf.path.starts_with(prefix)) continue;
      const std::string rest = leaf.path.substr(prefix.size());
      const bool is_new = part.insert(rest, leaf.value).second;
      LINKBOY_CHECK(is_new, "two values have the path ", in_quotes(leaf.path),
                    "; name the part of one of them.");
    }
    if (part.empty()) throw;
    return StateDict::from_ivalue(part, key);
  }
}

}  // namespace

StateDict read(const Source& source) {
  StateDict contents = read_all(source);
  if (source.key.empty()) return contents;
  try {
    return part_of(contents, source.key);
  } catch (const linkboy::Error& error) {
    // The message has names from the file.
    throw linkboy::Error("--key " + in_quotes(source.key) + " in " + in_quotes(source.path) + ": " +
                         escaped(error.what()));
  }
}

std::vector<Leaf> leaves_of(const StateDict& contents) {
  std::vector<Leaf> leaves;
  for (const auto& [key, value] : contents.entries()) add_leaves(key, value, leaves);
  return leaves;
}

}  // namespace linkboy_checkpoint
