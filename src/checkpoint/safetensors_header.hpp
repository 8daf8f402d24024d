#pragma once

#include <c10/core/ScalarType.h>

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace linkboy {

/// The limit of the format.
inline constexpr uint64_t kMaxSafeTensorsHeader = 100'000'000;
inline constexpr std::string_view kSafeTensorsMetadata = "__metadata__";

struct SafeTensorsEntry {
  std::string name;
  c10::ScalarType dtype = c10::ScalarType::Undefined;
  std::vector<int64_t> sizes;
  uint64_t begin = 0;  // In bytes from the start of the data.
  uint64_t end = 0;
};

struct SafeTensorsHeader {
  std::vector<SafeTensorsEntry> entries;
  std::map<std::string, std::string> metadata;
};

/// The place of `dtype` among those of the format, in the order in which files are laid out.
///
/// @throws Error if the format lacks it.
std::size_t safetensors_rank(c10::ScalarType dtype);

/// Parses the header of a file that has `num_data_bytes` after it. The entries come sorted by
/// offset, are as large as their shapes say and cover the data exactly.
///
/// @throws Error that says what is wrong, with the name of the tensor.
SafeTensorsHeader parse_safetensors_header(std::string_view json, uint64_t num_data_bytes);

/// The header as a file has it, padded to a multiple of 8 bytes.
///
/// @throws Error if a name or metadata is not UTF-8 or the header is too long.
std::string format_safetensors_header(const SafeTensorsHeader& header);

}  // namespace linkboy
