#include <algorithm>
#include <filesystem>
#include <memory>
#include <new>
#include <string>
#include <string_view>
#include <utility>

#include "file_bytes.hpp"
#include "linkboy/checkpoint/checkpoint.hpp"
#include "linkboy/checkpoint/safetensors.hpp"
#include "linkboy/error.hpp"
#include "linkboy/util/printable.hpp"
#include "unpickler.hpp"
#include "util/first_line.hpp"
#include "zip_archive.hpp"

namespace linkboy {
namespace {

// Recognises files that are not zip archives, because the zip reader's errors would be less clear.
void check_is_archive(const FileBytes& file) {
  LINKBOY_CHECK(file.size() > 0, "it is empty. Use another copy.");
  const std::string start = file.text(0, std::min<uint64_t>(4, file.size()));
  LINKBOY_CHECK(
      start != "\x80\x02\x8a\x0a",
      "it is in the format of torch.save before version 1.6; only the later zip format can be "
      "read. Load it in Python and save it again.");
  LINKBOY_CHECK(
      start == "PK\x03\x04",
      "it is not a checkpoint; it must be a zip archive from write_checkpoint or torch.save. "
      "Use another file.");
}

StateDict read_archive(const std::filesystem::path& path, const ReadOptions& options) {
  auto file = FileBytes::open(path, options.mmap);
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
  const c10::IValue value = unpickle(pickle, [&archive, &options](const std::string& key) {
    if (!options.with_data) {
      const std::size_t size = archive.check("data/" + key);
      return c10::Storage(c10::Storage::use_byte_size_t(), size, at::DataPtr(nullptr, at::kCPU),
                          nullptr, false);
    }
    auto [data, size] = archive.read("data/" + key);
    return c10::Storage(c10::Storage::use_byte_size_t(), size, std::move(data), nullptr, false);
  });
  return StateDict::from_ivalue(value, "its top value");
}

}  // namespace

StateDict read_checkpoint(const std::filesystem::path& path, const ReadOptions& options) {
  const std::string prefix = "cannot read the checkpoint \"" + path.string() + "\": ";
  const auto damaged = [&prefix](std::string_view detail) {
    return CorruptFileError(c10::str(prefix, "it is damaged or cut short (", first_line(detail),
                                     "). Use another copy."));
  };
  if (is_safetensors(path)) return StateDict(read_safetensors(path, options.mmap).tensors);
  try {
    return read_archive(path, options);
  } catch (const CorruptFileError& error) {
    throw CorruptFileError(prefix + error.what());
  } catch (const FileError& error) {
    throw FileError(prefix + error.what());
  } catch (const Error& error) {
    throw CorruptFileError(prefix + error.what());
  } catch (const std::bad_alloc&) {
    throw FileError(prefix + "there is not enough memory. Free some.");
  } catch (const std::exception&) {
    throw damaged(message_of(std::current_exception()));
  }
}

}  // namespace linkboy
