#include "contents.hpp"

#include <ATen/core/Dict.h>
#include <ATen/core/List.h>

#include <linkboy/checkpoint.hpp>
#include <linkboy/error.hpp>
#include <linkboy/name_options.hpp>
#include <linkboy/printable.hpp>
#include <linkboy/safetensors.hpp>
#include <set>
#include <utility>

#include "text.hpp"

namespace linkboy_checkpoint {
namespace {

constexpr std::size_t kMaxPathBytes = std::size_t{1} << 28;
constexpr uint64_t kMaxRepeats = 16;
constexpr uint64_t kFreeBytes = uint64_t{1} << 30;

using linkboy::StateDict;

class LeafCollector {
 public:
  void add(const std::string& path, const c10::IValue& value) {
    bool has_items = false;
    if (value.isGenericDict()) {
      for (const auto& entry : value.toGenericDict()) {
        add(path + '.' + plain_text(entry.key()), entry.value());
        has_items = true;
      }
    } else if (value.isList()) {
      has_items = add_items(path, value.toListRef());
    } else if (value.isTuple()) {
      has_items = add_items(path, value.toTupleRef().elements());
    }
    if (!has_items) add_leaf(path, value);
  }

  std::vector<Leaf> take() { return std::move(leaves_); }

 private:
  bool add_items(const std::string& path, c10::ArrayRef<c10::IValue> items) {
    for (std::size_t i = 0; i < items.size(); ++i) add(path + '.' + std::to_string(i), items[i]);
    return !items.empty();
  }

  // A long key stands in the path of each value below it.
  void add_leaf(const std::string& path, const c10::IValue& value) {
    path_bytes_ += path.size();
    LINKBOY_CHECK(path_bytes_ <= kMaxPathBytes, "the paths of its values take more than ",
                  kMaxPathBytes,
                  " bytes together, which no usual file needs: ", linkboy::quote_name(path),
                  " is one. Name a part of the file with --key.");
    leaves_.push_back({path, value});
  }

  std::size_t path_bytes_ = 0;
  std::vector<Leaf> leaves_;
};

StateDict read_all(const Source& source) {
  // By the ending as well, so that a damaged file is told what it is.
  const bool is_safetensors =
      source.path.extension() == ".safetensors" || linkboy::is_safetensors(source.path);
  if (!is_safetensors) return linkboy::read_checkpoint(source.path, {.mmap = source.mmap});

  const linkboy::SafeTensors file = linkboy::read_safetensors(source.path, source.mmap);
  StateDict contents(file.tensors);
  if (file.metadata.empty()) return contents;
  LINKBOY_CHECK(!contents.contains(kMetadata), linkboy::quoted(source.path.string()),
                " has a tensor \"", kMetadata,
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
    StateDict part;
    for (const Leaf& leaf : leaves_of(contents)) {
      if (!leaf.path.starts_with(prefix)) continue;
      const std::string rest = leaf.path.substr(prefix.size());
      LINKBOY_CHECK(!part.contains(rest), "two values have the path ",
                    linkboy::quote_name(leaf.path), "; name the part of one of them.");
      part.set(rest, leaf.value);
    }
    if (part.empty()) throw;
    return part;
  }
}

}  // namespace

StateDict read(const Source& source) {
  StateDict contents = read_all(source);
  if (source.key.empty()) return contents;
  try {
    return part_of(contents, source.key);
  } catch (const linkboy::Error& error) {
    throw linkboy::Error("--key " + linkboy::quoted(source.key) + " in " +
                         linkboy::quoted(source.path.string()) + ": " + error.what());
  }
}

std::vector<Leaf> leaves_of(const StateDict& contents) {
  LeafCollector leaves;
  for (const auto& [key, value] : contents.entries()) leaves.add(key, value);
  return leaves.take();
}

void check_elements(const std::vector<Leaf>& leaves) {
  std::set<const c10::StorageImpl*> storages;
  uint64_t stored = 0;
  uint64_t named = 0;
  for (const Leaf& leaf : leaves) {
    if (!leaf.value.isTensor()) continue;
    const at::Tensor& tensor = leaf.value.toTensor();
    if (storages.insert(tensor.storage().unsafeGetStorageImpl()).second) {
      stored += tensor.storage().nbytes();
    }
    named += num_bytes(tensor);
    LINKBOY_CHECK(named <= kMaxRepeats * stored + kFreeBytes, "its tensors up to ",
                  linkboy::quote_name(leaf.path), " name ", named, " bytes, of which the file has ",
                  stored, ": elements are repeated by strides or by other tensors. At most ",
                  kMaxRepeats, " times what the file has, and ", kFreeBytes,
                  " bytes, are read. Name a part of the file with --key, or load it with "
                  "read_checkpoint.");
  }
}

}  // namespace linkboy_checkpoint
