#pragma once

#include <ATen/core/ivalue.h>

#include <filesystem>
#include <linkboy/checkpoint/state_dict.hpp>
#include <string>
#include <vector>

namespace linkboy_checkpoint {

/// Where the metadata of a .safetensors file stands next to its tensors.
inline constexpr const char* kMetadata = "metadata";

/// A file to read, and how.
struct Source {
  std::filesystem::path path;
  std::string key;  // Names the part that is wanted; empty for all of it.
  bool mmap = false;
};

/// Reads a .pt or .safetensors file. Metadata of the latter is a dict `kMetadata` at the end.
///
/// The key names a dict, as for linkboy::get_nested; else it stands for all values whose dotted
/// paths begin with it, so that it fits flat names and numbers in paths as well.
///
/// @throws linkboy::Error if the file cannot be read or has no such part.
linkboy::StateDict read(const Source& source);

/// A tensor, number, bool, string, None or empty container.
struct Leaf {
  std::string path;  // "optimizer.state.0.step": the keys and indices on the way, with dots.
  c10::IValue value;
};

/// Returns all that `contents`, which was read from `source`, holds, in its order.
///
/// @throws linkboy::Error if the paths take more than 100 times the file's bytes together, and
///         1 MiB: a long key that stands above many values, or in itself many times, would take any
///         amount of memory.
std::vector<Leaf> leaves_of(const linkboy::StateDict& contents, const Source& source);

/// Checks that a walk over all elements is bounded by the file's size. A tensor of a few hundred
/// bytes may name any number of elements by strides of 0.
///
/// @throws linkboy::Error if the tensors name more than 1 GiB and more than 16 times the
///         bytes that their storages have.
void check_elements(const std::vector<Leaf>& leaves);

}  // namespace linkboy_checkpoint
