#pragma once

#include <filesystem>

#include "contents.hpp"

namespace linkboy_checkpoint {

/// Prints a line for each leaf, and their sum.
/// @param with_values  Adds the range, mean and first elements of each tensor. NaN counts in none.
/// @throws linkboy::Error if the file cannot be read, as do all commands.
void list(const Source& source, bool with_values);

/// Writes the contents of one file to another, as .pt or .safetensors by the ending of `to`.
///
/// A .safetensors file has tensors under dotted names and text, so other values become text in its
/// metadata, under their dotted names as well; those of a dict "metadata" that holds strings only
/// keep their own names, which brings back the metadata that a .safetensors file had.
///
/// @throws linkboy::Error if `to` exists without `force`, cannot be written, cannot hold a value,
///         or two names become one.
void convert(const Source& from, const std::filesystem::path& to, bool force);

/// Prints what differs between two files, by dotted paths: kinds of containers and formats do not
/// matter. Tensors and numbers may differ by `tolerance`; NaN equals NaN.
/// @return Whether they are equal.
bool diff(const Source& first, const Source& second, double tolerance);

}  // namespace linkboy_checkpoint
