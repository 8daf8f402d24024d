// Reads files of PyTorch before 1.6: five pickles, followed by the bytes of the storages.

#include "checkpoint/legacy_archive.hpp"

#include <ATen/core/List.h>
#include <c10/core/Storage.h>

#include <algorithm>
#include <cstddef>
#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "checkpoint/file_bytes.hpp"
#include "checkpoint/rebuild_tensor.hpp"
#include "checkpoint/unpickler.hpp"
#include "linkboy/error.hpp"
#include "linkboy/util/printable.hpp"

namespace linkboy {
namespace {

using namespace std::string_view_literals;

/// The pickle of the magic number 0x1950a86a20f9469cfc6c, without its protocol.
constexpr std::string_view kLegacyMagic = "\x8a\x0a\x6c\xfc\x9c\x46\xf9\x20\x6a\xa8\x50\x19."sv;
constexpr int64_t kLegacyVersion = 1001;

/// Returns the position after the magic number, or 0 if there is none. From protocol 4 on, a pickle
/// begins with the size of a frame.
std::size_t end_of_magic(const FileBytes& file) {
  constexpr std::size_t kProtocolSize = 2;
  constexpr std::size_t kFrameSize = 9;
  const std::string start = file.text(
      0, std::min<uint64_t>(file.size(), kProtocolSize + kFrameSize + kLegacyMagic.size()));
  for (const std::size_t begin : {kProtocolSize, kProtocolSize + kFrameSize}) {
    if (start.front() == '\x80' && start.find(kLegacyMagic) == begin)
      return begin + kLegacyMagic.size();
  }
  return 0;
}

c10::Storage no_storage(const StorageId&) {
  throw Error("it is damaged: there is a tensor before its value. Use another copy.");
}

/// The storages of a file. The value refers to them before it is known where their bytes are.
class LegacyStorages {
 public:
  explicit LegacyStorages(const FileBytes& file) : file_(file) {}

  c10::Storage get(const StorageId& id) {
    const auto [found, is_new] = roots_.try_emplace(id.key);
    Root& root = found->second;
    if (is_new) {
      check_size(id.num_elements, id.element_size, file_.size());
      root = {storage_of(static_cast<std::size_t>(id.num_elements) * id.element_size),
              id.element_size};
    }
    if (!id.view) return root.storage;
    const auto [key, offset, num_elements] = *id.view;
    check_size(offset, id.element_size, root.storage.nbytes());
    const std::size_t begin = static_cast<std::size_t>(offset) * id.element_size;
    check_size(num_elements, id.element_size, root.storage.nbytes() - begin);
    views_.push_back({storage_of(static_cast<std::size_t>(num_elements) * id.element_size),
                      root.storage, begin});
    return views_.back().storage;
  }

  /// Reads the storages with these keys, which are one after the other from `offset` on.
  void read(c10::ArrayRef<c10::IValue> keys, uint64_t offset, bool with_data) {
    std::size_t num_read = 0;
    for (const c10::IValue& key : keys) {
      const auto found = roots_.find(key.isString() ? key.toStringRef() : "");
      LINKBOY_CHECK(found != roots_.end() && !std::exchange(found->second.is_read, true),
                    "it is damaged: its list of storages does not match its tensors. Use another "
                    "copy.");
      ++num_read;
      read(found->second, found->first, offset, with_data);
    }
    LINKBOY_CHECK(num_read == roots_.size(), "it is damaged: it lacks ", roots_.size() - num_read,
                  " storages of its tensors. Use another copy.");
    if (!with_data) return;
    for (const View& view : views_) {
      auto keep = std::make_unique<c10::Storage>(view.root);
      auto* const begin = static_cast<char*>(view.root.mutable_data()) + view.begin;
      view.storage.set_data_ptr_noswap(
          {begin, keep.release(), [](void* context) { delete static_cast<c10::Storage*>(context); },
           at::kCPU});
    }
  }

 private:
  struct Root {
    c10::Storage storage;
    std::size_t element_size = 0;
    bool is_read = false;
  };
  /// A part of another storage. PyTorch up to 0.3 had such storages.
  struct View {
    c10::Storage storage;
    c10::Storage root;
    std::size_t begin;
  };

  static void check_size(int64_t num_elements, std::size_t element_size, uint64_t limit) {
    LINKBOY_CHECK(num_elements >= 0 && static_cast<uint64_t>(num_elements) <= limit / element_size,
                  "it is damaged or cut short: a storage claims ", num_elements, " elements of ",
                  element_size, " bytes in ", limit, " bytes. Use another copy.");
  }

  void read(Root& root, const std::string& key, uint64_t& offset, bool with_data) {
    ByteReader header(file_, offset, "it");
    const uint64_t num_elements = header.take_unsigned(sizeof(uint64_t));
    const uint64_t num_bytes = root.storage.nbytes();
    LINKBOY_CHECK(num_elements == num_bytes / root.element_size, "it is damaged: the storage ",
                  quote_name(key), " has ", num_elements, " elements, but its tensors need ",
                  num_bytes / root.element_size, ". Use another copy.");
    offset = header.position();
    LINKBOY_CHECK(num_bytes <= file_.size() - offset, "it is cut short: the storage ",
                  quote_name(key), " needs ", num_bytes, " bytes at offset ", offset,
                  ", but the file ends at ", file_.size(), ". Use another copy.");
    if (with_data) {
      root.storage.set_data_ptr_noswap(file_.data(offset, num_bytes, alignof(std::max_align_t)));
    }
    offset += num_bytes;
  }

  const FileBytes& file_;
  std::map<std::string, Root, std::less<>>
      roots_;  // Not hashed, because the file chooses the keys.
  std::vector<View> views_;
};

}  // namespace

bool is_legacy_archive(const FileBytes& file) { return file.size() > 0 && end_of_magic(file) > 0; }

c10::IValue read_legacy_archive(const std::shared_ptr<FileBytes>& file, bool with_data) {
  ByteReader bytes(*file, end_of_magic(*file), "its pickle");
  const c10::IValue version = unpickle(bytes, no_storage);
  LINKBOY_CHECK(version.isInt() && version.toInt() == kLegacyVersion,
                "its version of the format is ", version.isInt() ? version.toInt() : -1,
                "; it must be ", kLegacyVersion, ". Load it in Python and save it again.");
  // The writer's byte order and sizes of types. All files are little-endian.
  unpickle(bytes, no_storage);
  LegacyStorages storages(*file);
  c10::IValue value = unpickle(bytes, [&](const StorageId& id) { return storages.get(id); });
  const c10::IValue keys = unpickle(bytes, no_storage);
  LINKBOY_CHECK(keys.isList(), "it is damaged: its list of storages is missing. Use another copy.");
  storages.read(keys.toListRef(), bytes.position(), with_data);
  return value;
}

}  // namespace linkboy
