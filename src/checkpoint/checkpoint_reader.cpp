// Recognises the format of a checkpoint (safetensors, zip, or older than PyTorch 1.6), rejects
// files that can contain code, and adds the path to all errors.

#include <algorithm>
#include <filesystem>
#include <memory>
#include <string>
#include <utility>

#include "file_bytes.hpp"
#include "legacy_archive.hpp"
#include "linkboy/checkpoint/checkpoint.hpp"
#include "linkboy/checkpoint/safetensors.hpp"
#include "linkboy/error.hpp"
#include "linkboy/util/printable.hpp"
#include "rebuild_tensor.hpp"
#include "unpickler.hpp"
#include "zip_archive.hpp"

namespace linkboy {
namespace {

// Recognises files that are not zip archives, because the zip reader's errors would be less clear.
void check_is_archive(const FileBytes& file) {
  LINKBOY_CHECK(file.size() > 0, "it is empty. Use another copy.");
  const std::string start = file.text(0, std::min<uint64_t>(4, file.size()));
  constexpr uint64_t kTarMark = 257;
  LINKBOY_CHECK(file.size() < kTarMark + 5 || file.text(kTarMark, 5) != "ustar",
                "it is a tar archive of PyTorch 0.1, which can contain code. If you trust it, load "
                "it in Python with torch.load(path, weights_only=False), and save it again.");
  LINKBOY_CHECK(start == "PK\x03\x04",
                "it is not a checkpoint; it must be a file from write_checkpoint or torch.save. "
                "Use another file.");
}

c10::IValue read_archive(const std::filesystem::path& path, const ReadOptions& options) {
  auto file = FileBytes::open(path, options.mmap);
  if (is_legacy_archive(*file)) return read_legacy_archive(file, options.with_data);
  check_is_archive(*file);
  ZipReader archive(std::move(file), options.verify_checksums);
  LINKBOY_CHECK(
      !archive.has("constants.pkl"),
      "it is a TorchScript or torch::save archive, which can contain code; only files from "
      "write_checkpoint and Python's torch.save can be read. Load it with torch::load and "
      "write its state with write_checkpoint.");
  if (archive.has("byteorder")) {
    const std::string byte_order = archive.read_text("byteorder");
    LINKBOY_CHECK(byte_order == "little", "its byte order is ", quote_name(byte_order),
                  "; it must be \"little\". Save it again on a little-endian machine.");
  }
  const std::string pickle = archive.read_text("data.pkl");
  return unpickle(pickle, [&archive, &options](const StorageId& id) {
    const std::string record = "data/" + id.key;
    if (!options.with_data) return storage_of(archive.check(record));
    auto [data, size] = archive.read(record);
    return storage_of(size, std::move(data));
  });
}

StateDict state_of(const c10::IValue& value) {
  try {
    return StateDict::from_ivalue(value, "its top value");
  } catch (const Error& error) {
    throw Error(c10::str(error.what(), " Read it with read_checkpoint_value."));
  }
}

}  // namespace

StateDict read_checkpoint(const std::filesystem::path& path, const ReadOptions& options) {
  if (is_safetensors(path)) return StateDict(read_safetensors(path, options.mmap).tensors);
  return with_path("checkpoint", path, [&] { return state_of(read_archive(path, options)); });
}

c10::IValue read_checkpoint_value(const std::filesystem::path& path, const ReadOptions& options) {
  if (is_safetensors(path)) return read_checkpoint(path, options).to_ivalue();
  return with_path("checkpoint", path, [&] { return read_archive(path, options); });
}

}  // namespace linkboy
