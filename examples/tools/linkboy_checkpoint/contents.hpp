#pragma once

#include <ATen/core/ivalue.h>

#include <filesystem>
#include <string>
#include <vector>

#include <linkboy/checkpoint/state_dict.hpp>

namespace linkboy_checkpoint {

/// The key for the metadata of a .safetensors file, next to its tensors.
inline constexpr const char* kMetadata = "metadata";

/// A file to read, and how to read it.
struct Source {
  std::filesystem::path path;
  std::string key;  // Path of the part to read; if empty, the whole file.
  bool mmap = false;
};

/// Reads a .pt or .safetensors file. The metadata of the latter becomes a dict `kMetadata` at the
/// end.
///
/// The key is the path of a dict, as for linkboy::get_nested. If there is no such dict, it selects
/// all values whose dotted paths begin with it, so that it also works for flat names and for
/// indices in paths.
///
/// @throws linkboy::Error if the file cannot be read or does not have this part.
linkboy::StateDict read(const Source& source);

/// A tensor, number, bool, string, None or empty container.
struct Leaf {
  std::string path;  // The keys and indices that lead to it: "optimizer.state.0.step".
  c10::IValue value;
};

/// Returns the leaves of `contents`, which was read from `source`, in their order.
///
/// @throws linkboy::Error if the paths have more than 1 MiB plus 100 times the size of the file in
///         total. Without this limit, a long key above many values, or nested in itself, could use
///         any amount of memory.
std::vector<Leaf> leaves_of(const linkboy::StateDict& contents, const Source& source);

/// Checks that the file's size limits the number of elements. With strides of 0, a tensor of a few
/// hundred bytes can have any number of them.
///
/// @throws linkboy::Error if the tensors have more than 1 GiB plus 16 times the bytes of their
///         storages.
void check_elements(const std::vector<Leaf>& leaves);

}  // namespace linkboy_checkpoint
