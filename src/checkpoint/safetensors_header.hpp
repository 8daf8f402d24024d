#pragma once

#include <c10/core/ScalarType.h>

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace linkboy {

/// The format's limit for the size of the header, in bytes.
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

/// Returns the rank of `dtype` in the order in which a file stores the dtypes.
///
/// @throws Error if the format does not support `dtype`.
std::size_t safetensors_rank(c10::ScalarType dtype);

/// Parses the header of a file that has `num_data_bytes` bytes of data after it. The entries are
/// sorted by offset. Their sizes match their shapes, and they cover the data exactly.
///
/// @throws Error that describes the problem and the tensor.
SafeTensorsHeader parse_safetensors_header(std::string_view json, uint64_t num_data_bytes);

/// Returns the header as it is stored in a file, padded to a multiple of 8 bytes.
///
/// @throws Error if a name or metadata is not UTF-8, or if the header is too long.
std::string format_safetensors_header(const SafeTensorsHeader& header);

}  // namespace linkboy
