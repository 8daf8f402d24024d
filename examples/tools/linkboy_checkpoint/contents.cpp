#include "contents.hpp"

#include <ATen/core/Dict.h>
#include <ATen/core/List.h>

#include <set>
#include <utility>

#include <linkboy/checkpoint/checkpoint.hpp>
#include <linkboy/checkpoint/safetensors.hpp>
#include <linkboy/checkpoint/tensor_renaming.hpp>
#include <linkboy/error.hpp>
#include <linkboy/util/printable.hpp>

#include "text.hpp"

namespace linkboy_checkpoint {
namespace {

// A bool in a list uses one byte of the file, but its path can have dozens of bytes.
constexpr uint64_t kPathBytesPerByte = 100;
constexpr uint64_t kFreePathBytes = uint64_t{1} << 20;
constexpr uint64_t kMaxRepeats = 16;
constexpr uint64_t kFreeBytes = uint64_t{1} << 30;

using linkboy::StateDict;

class LeafCollector {
 public:
  explicit LeafCollector(uint64_t max_path_bytes) : max_path_bytes_(max_path_bytes) {}

  void add(const std::string& key, const c10::IValue& value) {
    path_ = key;
    add(value);
  }

  std::vector<Leaf> take() { return std::move(leaves_); }

 private:
  /// Adds the leaves of the value at `path_`, a buffer that all levels share.
  void add(const c10::IValue& value) {
    // A long key is repeated in the path of each value below it.
    LINKBOY_CHECK(path_bytes_ + path_.size() <= max_path_bytes_,
                  "the paths of its values have more than ", max_path_bytes_,
                  " bytes in total, which is too much for a file of this size; one path is ",
                  linkboy::quote_name(path_), ". Select a part of the file with --key.");
    bool has_items = false;
    if (value.isGenericDict()) {
      for (const auto& entry : value.toGenericDict()) {
        add_below(plain_text(entry.key()), entry.value());
        has_items = true;
      }
    } else if (value.isList()) {
      has_items = add_items(value.toListRef());
    } else if (value.isTuple()) {
      has_items = add_items(value.toTupleRef().elements());
    }
    if (has_items) return;
    path_bytes_ += path_.size();
    leaves_.push_back({path_, value});
  }

  bool add_items(c10::ArrayRef<c10::IValue> items) {
    for (std::size_t i = 0; i < items.size(); ++i) add_below(std::to_string(i), items[i]);
    return !items.empty();
  }

  void add_below(std::string step, const c10::IValue& value) {
    const std::size_t size = path_.size();
    path_.append(1, '.').append(step);
    step = std::string();  // frees the memory: steps can be long, and levels many
    add(value);
    path_.resize(size);
  }

  uint64_t max_path_bytes_;
  std::string path_;
  uint64_t path_bytes_ = 0;
  std::vector<Leaf> leaves_;
};

StateDict read_all(const Source& source) {
  // Also checks the extension, so that a damaged .safetensors file gets the right error message.
  const bool is_safetensors =
      source.path.extension() == ".safetensors" || linkboy::is_safetensors(source.path);
  if (!is_safetensors) return linkboy::read_checkpoint(source.path, {.mmap = source.mmap});

  const linkboy::SafeTensors file = linkboy::read_safetensors(source.path, source.mmap);
  StateDict contents(file.tensors);
  if (file.metadata.empty()) return contents;
  LINKBOY_CHECK(!contents.contains(kMetadata), linkboy::quoted(source.path.string()),
                " has a tensor \"", kMetadata,
                "\" as well as metadata, which needs this name. Rename the tensor.");
  StateDict metadata;
  for (const auto& [key, value] : file.metadata) metadata.set(key, value);
  contents.set(kMetadata, metadata);
  return contents;
}

StateDict part_of(const StateDict& contents, const Source& source) {
  try {
    return linkboy::get_nested(contents, source.key);
  } catch (const linkboy::Error&) {
    const std::string prefix = source.key + '.';
    StateDict part;
    for (const Leaf& leaf : leaves_of(contents, source)) {
      if (!leaf.path.starts_with(prefix)) continue;
      const std::string rest = leaf.path.substr(prefix.size());
      LINKBOY_CHECK(!part.contains(rest), "two values have the path ",
                    linkboy::quote_name(leaf.path), "; give the path of only one of them.");
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
    return part_of(contents, source);
  } catch (const linkboy::Error& error) {
    throw linkboy::Error("--key " + linkboy::quoted(source.key) + " in " +
                         linkboy::quoted(source.path.string()) + ": " + error.what());
  }
}

std::vector<Leaf> leaves_of(const StateDict& contents, const Source& source) {
  const uint64_t size = std::filesystem::file_size(source.path);
  LeafCollector leaves(kPathBytesPerByte * size + kFreePathBytes);
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
                  linkboy::quote_name(leaf.path), " have ", named, " bytes, but the file stores ",
                  stored, ": strides or other tensors repeat elements. The limit is ", kMaxRepeats,
                  " times the stored bytes, plus ", kFreeBytes,
                  " bytes. Select a part of the file with --key, or load it with "
                  "read_checkpoint.");
  }
}

}  // namespace linkboy_checkpoint
