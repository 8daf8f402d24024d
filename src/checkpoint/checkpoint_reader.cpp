#include <cerrno>
#include <filesystem>
#include <fstream>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>

#include "linkboy/checkpoint.hpp"
#include "linkboy/error.hpp"
#include "linkboy/safetensors.hpp"
#include "unpickler.hpp"
#include "zip_archive.hpp"

namespace linkboy {
namespace {

// Says what the file is if it is no zip archive, before a zip reader complains in its own terms.
void check_is_archive(const std::filesystem::path& path) {
  std::error_code error;
  LINKBOY_CHECK(!std::filesystem::is_directory(path, error),
                "it is a folder; a file is needed. Name the .pt file in it.");
  std::ifstream file(path, std::ios::binary);
  LINKBOY_CHECK(file.is_open(), std::generic_category().message(errno),
                ". Check the path and its permissions.");
  std::string start(4, '\0');
  file.read(start.data(), static_cast<std::streamsize>(start.size()));
  LINKBOY_CHECK(file.gcount() > 0, "it is empty. Use another copy.");
  LINKBOY_CHECK(start.compare(0, 4, "\x80\x02\x8a\x0a") != 0,
                "it is in the format that torch.save had before version 1.6; only the zip format "
                "that followed can be read. Load it in Python and save it again.");
  LINKBOY_CHECK(start.compare(0, 4, "PK\x03\x04") == 0,
                "it is not a checkpoint; a zip archive is needed, as write_checkpoint and "
                "torch.save make it.");
}

StateDict read_archive(const std::filesystem::path& path, const ReadOptions& options) {
  check_is_archive(path);
  ZipReader archive(path, options.mmap, options.verify_checksums);
  LINKBOY_CHECK(!archive.has("constants.pkl"),
                "it is a TorchScript or torch::save archive, which is more than data; files of "
                "write_checkpoint and Python's torch.save can be read. Load it with torch::load "
                "and write its state with write_checkpoint.");
  if (archive.has("byteorder")) {
    const std::string byte_order = archive.read_text("byteorder");
    LINKBOY_CHECK(byte_order == "little", "its byte order is \"", byte_order,
                  "\"; it must be \"little\". Save it again on a little-endian machine.");
  }
  const std::string pickle = archive.read_text("data.pkl");
  const c10::IValue value = unpickle(pickle, [&archive](const std::string& key) {
    auto [data, size] = archive.read("data/" + key);
    return c10::Storage(c10::Storage::use_byte_size_t(), size, std::move(data), nullptr, false);
  });
  return StateDict::from_ivalue(value, "its top value");
}

std::string first_line(std::string_view text) {
  return std::string(text.substr(0, text.find('\n')));
}

}  // namespace

StateDict read_checkpoint(const std::filesystem::path& path, const ReadOptions& options) {
  const std::string prefix = "cannot read the checkpoint \"" + path.string() + "\": ";
  const auto damaged = [&prefix](std::string_view detail) {
    return Error(c10::str(prefix, "it is damaged or cut short (", first_line(detail),
                          "). Use another copy."));
  };
  std::error_code ignored;
  if (std::filesystem::is_regular_file(path, ignored) && is_safetensors(path)) {
    return StateDict(read_safetensors(path, options.mmap).tensors);
  }
  try {
    return read_archive(path, options);
  } catch (const Error& error) {
    throw Error(prefix + error.what());
  } catch (const c10::Error& error) {
    throw damaged(error.what_without_backtrace());
  } catch (const std::exception& error) {
    throw damaged(error.what());
  }
}

}  // namespace linkboy
