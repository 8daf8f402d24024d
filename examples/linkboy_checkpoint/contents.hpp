#pragma once

#include <ATen/core/ivalue.h>

#include <filesystem>
#include <linkboy/state_dict.hpp>
#include <string>
#include <vector>

namespace linkboy_checkpoint {

/// Where the metadata of a .safetensors file stands beside its tensors.
inline constexpr const char* kMetadata = "metadata";

/// A file to read, and how.
struct Source {
  std::filesystem::path path;
  std::string key;  // Names the part that is wanted; empty for all of it.
  bool mmap = false;
};

/// Reads a .pt or .safetensors file. Metadata of the latter is a dict `kMetadata` at the end.
///
/// The key names a dict, as for linkboy::select_part; else it stands for all values whose dotted
/// paths begin with it, so that it fits flat names and numbers in paths as well.
///
/// @throws linkboy::Error if the file cannot be read or has no such part.
linkboy::StateDict read(const Source& source);

/// A tensor, number, bool, string, None or empty container.
struct Leaf {
  std::string path;  // "optimizer.state.0.step": the keys and indices on the way, with dots.
  c10::IValue value;
};

/// All that `contents` holds, in its order.
std::vector<Leaf> leaves_of(const linkboy::StateDict& contents);

}  // namespace linkboy_checkpoint
