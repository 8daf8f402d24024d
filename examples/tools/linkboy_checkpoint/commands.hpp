#pragma once

#include <filesystem>

#include "contents.hpp"

namespace linkboy_checkpoint {

/// Prints a line for each leaf, and the totals. Like all commands, throws linkboy::Error if a file
/// cannot be read.
/// @param with_values  If true, also prints each tensor's range and mean, both without NaNs, and
///        its first elements.
void list(const Source& source, bool with_values);

/// Writes the contents of one file to another. The extension of `to` selects .pt or .safetensors.
///
/// A .safetensors file contains only named tensors and text metadata. Nested tensors therefore get
/// dotted names, and other values become text in the metadata under their dotted names. The entries
/// of a dict "metadata" that contains only strings keep their names, so that the metadata of a
/// .safetensors file survives a conversion to .pt and back.
///
/// @throws linkboy::Error if `to` exists and `force` is false, if it cannot be written or cannot
///         contain a value, or if two names become equal.
void convert(const Source& from, const std::filesystem::path& to, bool force);

/// Prints the differences between two files, by dotted path. Ignores the file formats and the types
/// of containers. Tensors and numbers may differ by `tolerance`; NaN equals NaN.
/// @return Whether the files are equal.
bool diff(const Source& first, const Source& second, double tolerance);

}  // namespace linkboy_checkpoint
