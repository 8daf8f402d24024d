// Reads and writes the tensors of .safetensors files. safetensors_header.cpp contains their header.

#include "linkboy/checkpoint/safetensors.hpp"

#include <ATen/ops/empty.h>
#include <c10/core/Storage.h>

#include <algorithm>
#include <cstdint>
#include <set>
#include <string_view>
#include <utility>

#include "atomic_file.hpp"
#include "file_bytes.hpp"
#include "linkboy/error.hpp"
#include "linkboy/util/printable.hpp"
#include "lost_rank_flag.hpp"
#include "rebuild_tensor.hpp"
#include "safetensors_header.hpp"

namespace linkboy {
namespace {

constexpr uint64_t kLengthSize = sizeof(uint64_t);

uint64_t read_header_size(const FileBytes& file) {
  LINKBOY_CHECK(file.size() > 0, "it is empty. Use another copy.");
  constexpr uint64_t kMinSize = kLengthSize + 2;
  LINKBOY_CHECK(file.size() >= kMinSize, "it has ", file.size(),
                " bytes; a safetensors file has at least ", kMinSize, ". Use another copy.");
  const uint64_t size = ByteReader(file.text(0, kLengthSize), "it").take_unsigned(kLengthSize);
  const uint64_t limit = std::min(file.size() - kLengthSize, kMaxSafeTensorsHeader);
  LINKBOY_CHECK(size >= 2 && size <= limit, "its header claims ", size,
                " bytes; in a file of this size it can have 2 to ", limit,
                ". It is damaged, cut short or not a safetensors file. Use another copy.");
  LINKBOY_CHECK(file.text(kLengthSize, 1) == "{",
                "its header does not begin with \"{\"; it is damaged or not a safetensors file. "
                "Use another copy.");
  return size;
}

at::Tensor read_tensor(const FileBytes& file, uint64_t offset, const SafeTensorsEntry& entry) {
  const uint64_t size = entry.end - entry.begin;
  const c10::Storage storage =
      storage_of(size, file.data(offset, size, c10::elementSize(entry.dtype)));
  std::vector<int64_t> strides(entry.sizes.size());
  int64_t stride = 1;
  for (std::size_t i = entry.sizes.size(); i-- > 0;) {
    strides[i] = stride;
    stride *= std::max<int64_t>(entry.sizes[i], 1);
  }
  return rebuild_tensor(storage, entry.dtype, 0, entry.sizes, strides);
}

// Any use of a bool that is neither 0 nor 1 is undefined behaviour.
void check_bools(const at::Tensor& tensor, const std::string& name) {
  const auto* const bytes = static_cast<const uint8_t*>(tensor.const_data_ptr());
  const auto* const end = bytes + tensor.numel();
  const auto* const bad = std::find_if(bytes, end, [](uint8_t byte) { return byte > 1; });
  LINKBOY_CHECK(bad == end, "tensor ", quote_name(name), " of dtype BOOL contains the byte ",
                int{*bad}, "; only 0 and 1 are allowed. Use another copy.");
}

SafeTensors read_file(const FileBytes& file) {
  const uint64_t header_size = read_header_size(file);
  const uint64_t data_begin = kLengthSize + header_size;
  const std::string json = file.text(kLengthSize, header_size);
  SafeTensorsHeader header = parse_safetensors_header(json, file.size() - data_begin);

  SafeTensors result = {{}, std::move(header.metadata)};
  result.tensors.reserve(header.entries.size());
  for (SafeTensorsEntry& entry : header.entries) {
    at::Tensor tensor = read_tensor(file, data_begin + entry.begin, entry);
    if (entry.dtype == at::kBool) check_bools(tensor, entry.name);
    result.tensors.emplace_back(std::move(entry.name), std::move(tensor));
  }
  return result;
}

void check_tensor(const at::Tensor& tensor) {
  LINKBOY_CHECK(tensor.defined(), "it is undefined; a tensor with data is needed. Leave it out.");
  safetensors_rank(tensor.scalar_type());
  LINKBOY_CHECK(tensor.layout() == at::kStrided && !tensor.is_nested(), "its layout is ",
                tensor.is_nested() ? "nested" : c10::str(tensor.layout()),
                "; the format supports dense tensors only. Make it dense or use several tensors.");
  LINKBOY_CHECK(!tensor.is_meta(),
                "it is on the meta device and has no data. Materialise it or leave it out.");
}

// Sorts the tensors as the official library does: by dtype, then by name.
std::vector<const NamedTensors::value_type*> sort_for_file(const NamedTensors& tensors) {
  std::vector<const NamedTensors::value_type*> sorted;
  std::set<std::string_view> names;
  for (const auto& named : tensors) {
    LINKBOY_CHECK(named.first != kSafeTensorsMetadata, "a tensor is named ",
                  quote_name(named.first),
                  ", which the format reserves for the metadata. Choose another name.");
    LINKBOY_CHECK(names.insert(named.first).second, "two tensors are named ",
                  quote_name(named.first), "; each name must occur once. Rename one.");
    try {
      check_tensor(named.second);
    } catch (const Error& error) {
      throw Error("tensor " + quote_name(named.first) + ": " + error.what());
    }
    sorted.push_back(&named);
  }
  std::sort(sorted.begin(), sorted.end(), [](const auto* a, const auto* b) {
    return std::pair(safetensors_rank(a->second.scalar_type()), std::string_view(a->first)) <
           std::pair(safetensors_rank(b->second.scalar_type()), std::string_view(b->first));
  });
  return sorted;
}

// Returns the tensor itself if its memory already has the file's layout, otherwise a copy.
at::Tensor contiguous_on_cpu(const at::Tensor& tensor) {
  const bool is_ready = tensor.is_cpu() && tensor.is_contiguous() && !tensor.is_conj() &&
                        !tensor.is_neg() && !tensor._is_zerotensor();
  if (is_ready) return tensor;
  return at::empty(tensor.sizes(), at::TensorOptions().dtype(tensor.scalar_type()).device(at::kCPU))
      .copy_(tensor.detach());
}

}  // namespace

void write_safetensors(const std::filesystem::path& path, const NamedTensors& tensors,
                       const std::map<std::string, std::string>& metadata) {
  std::vector<const NamedTensors::value_type*> sorted;
  std::string json;
  try {
    sorted = sort_for_file(tensors);
    SafeTensorsHeader header = {{}, metadata};
    uint64_t end = 0;
    for (const auto* named : sorted) {
      const auto& [name, tensor] = *named;
      const uint64_t begin = end;
      end += static_cast<uint64_t>(tensor.numel()) * tensor.element_size();
      header.entries.push_back({name, tensor.scalar_type(), tensor.sizes().vec(), begin, end});
    }
    json = format_safetensors_header(header);
  } catch (const Error& error) {
    throw Error("cannot write the safetensors file \"" + path.string() + "\": " + error.what());
  }
  AtomicFile file(path);
  json.insert(0, little_endian(uint64_t{json.size()}));
  file.write(json.data(), json.size());
  for (const auto* named : sorted) {
    const at::Tensor ready = contiguous_on_cpu(named->second);
    if (ready.numel() > 0) file.write(ready.const_data_ptr(), ready.nbytes());
  }
  require_device_results(path);
  file.commit();
}

SafeTensors read_safetensors(const std::filesystem::path& path, bool mmap) {
  return with_path("safetensors file", path,
                   [&] { return read_file(*FileBytes::open(path, mmap)); });
}

bool is_safetensors(const std::filesystem::path& path) {
  try {
    read_header_size(*FileBytes::open(path, false));
    return true;
  } catch (const Error&) {
    return false;
  }
}

}  // namespace linkboy
