#include "linkboy/safetensors.hpp"

#include <ATen/ops/empty.h>
#include <c10/core/Storage.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <memory>
#include <set>
#include <string_view>
#include <system_error>
#include <utility>

#include "atomic_file.hpp"
#include "linkboy/error.hpp"
#include "rebuild_tensor.hpp"
#include "safetensors_header.hpp"

namespace linkboy {
namespace {

static_assert(std::endian::native == std::endian::little, "the format is little-endian");

std::string reason(int error) { return std::generic_category().message(error); }

class File {
 public:
  explicit File(const std::filesystem::path& path) {
    // O_NONBLOCK, or a named pipe would wait for a writer.
    do {
      descriptor_ = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    } while (descriptor_ < 0 && errno == EINTR);
    LINKBOY_CHECK(descriptor_ >= 0, reason(errno), ". Check the path and its permissions.");
    struct stat status = {};
    const bool is_file = ::fstat(descriptor_, &status) == 0 && S_ISREG(status.st_mode);
    if (!is_file) {
      ::close(descriptor_);
      throw Error(c10::str("it is ", S_ISDIR(status.st_mode) ? "a folder" : "no regular file",
                           "; a file is needed. Name the .safetensors file."));
    }
    size_ = static_cast<uint64_t>(status.st_size);
  }
  ~File() { ::close(descriptor_); }
  File(const File&) = delete;
  File& operator=(const File&) = delete;

  int descriptor() const { return descriptor_; }
  uint64_t size() const { return size_; }

  void read(uint64_t offset, void* data, std::size_t size) const {
    auto* next = static_cast<char*>(data);
    while (size > 0) {
      const ssize_t count = ::pread(descriptor_, next, std::min<std::size_t>(size, 1 << 30),
                                    static_cast<off_t>(offset));
      if (count < 0 && errno == EINTR) continue;
      LINKBOY_CHECK(count >= 0, reason(errno), " at byte ", offset, ". Check the disk.");
      LINKBOY_CHECK(count > 0, "it became shorter while it was read. Read it again.");
      next += count;
      offset += static_cast<uint64_t>(count);
      size -= static_cast<std::size_t>(count);
    }
  }

 private:
  int descriptor_ = -1;
  uint64_t size_ = 0;
};

class Mapping {
 public:
  // MAP_NORESERVE: only what is written to takes memory, so a file may be larger than that.
  explicit Mapping(const File& file)
      : size_(file.size()),
        data_(::mmap(nullptr, size_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_NORESERVE,
                     file.descriptor(), 0)) {
    LINKBOY_CHECK(data_ != MAP_FAILED, "it cannot be mapped (", reason(errno),
                  "). Read it with mmap = false.");
  }
  ~Mapping() { ::munmap(data_, size_); }
  Mapping(const Mapping&) = delete;
  Mapping& operator=(const Mapping&) = delete;

  char* data() const { return static_cast<char*>(data_); }

 private:
  std::size_t size_;
  void* data_;
};

constexpr uint64_t kLengthSize = sizeof(uint64_t);

uint64_t read_header_size(const File& file) {
  LINKBOY_CHECK(file.size() > 0, "it is empty. Use another copy.");
  constexpr uint64_t kMinSize = kLengthSize + 2;
  LINKBOY_CHECK(file.size() >= kMinSize, "it has ", file.size(),
                " bytes; a safetensors file has at least ", kMinSize, ". Use another copy.");
  uint64_t size = 0;
  file.read(0, &size, kLengthSize);
  const uint64_t limit = std::min(file.size() - kLengthSize, kMaxSafeTensorsHeader);
  LINKBOY_CHECK(size >= 2 && size <= limit, "its header claims ", size,
                " bytes; in a file of this size it can have 2 to ", limit,
                ". It is not a safetensors file, damaged or cut short. Use another copy.");
  char first = '\0';
  file.read(kLengthSize, &first, 1);
  LINKBOY_CHECK(first == '{',
                "its header does not begin with \"{\"; it is not a safetensors file or damaged. "
                "Use another copy.");
  return size;
}

at::Tensor view(const std::shared_ptr<Mapping>& mapping, uint64_t offset,
                const SafeTensorsEntry& entry) {
  using Owner = std::shared_ptr<Mapping>;
  at::DataPtr data(
      mapping->data() + offset, new Owner(mapping),
      [](void* owner) { delete static_cast<Owner*>(owner); }, at::kCPU);
  const c10::Storage storage(c10::Storage::use_byte_size_t(), entry.end - entry.begin,
                             std::move(data), nullptr, false);
  std::vector<int64_t> strides(entry.sizes.size());
  int64_t stride = 1;
  for (std::size_t i = entry.sizes.size(); i-- > 0;) {
    strides[i] = stride;
    stride *= std::max<int64_t>(entry.sizes[i], 1);
  }
  return rebuild_tensor(storage, entry.dtype, 0, entry.sizes, strides);
}

at::Tensor copy(const File& file, uint64_t offset, const SafeTensorsEntry& entry) {
  at::Tensor tensor =
      at::empty(entry.sizes, at::TensorOptions().dtype(entry.dtype).device(at::kCPU));
  file.read(offset, tensor.mutable_data_ptr(), entry.end - entry.begin);
  return tensor;
}

// A bool that is neither is undefined behaviour wherever it is used.
void check_bools(const at::Tensor& tensor, const std::string& name) {
  const auto* const bytes = static_cast<const uint8_t*>(tensor.const_data_ptr());
  const auto* const end = bytes + tensor.numel();
  const auto* const bad = std::find_if(bytes, end, [](uint8_t byte) { return byte > 1; });
  LINKBOY_CHECK(bad == end, "tensor ", quote_name(name), " of dtype BOOL holds the byte ",
                int{*bad}, "; 0 and 1 are allowed. Use another copy.");
}

SafeTensors read_file(const File& file, bool mmap) {
  const uint64_t header_size = read_header_size(file);
  const uint64_t data_begin = kLengthSize + header_size;
  std::string json(header_size, '\0');
  file.read(kLengthSize, json.data(), json.size());
  SafeTensorsHeader header = parse_safetensors_header(json, file.size() - data_begin);

  SafeTensors result = {{}, std::move(header.metadata)};
  result.tensors.reserve(header.entries.size());
  const auto mapping = mmap ? std::make_shared<Mapping>(file) : nullptr;
  for (SafeTensorsEntry& entry : header.entries) {
    const uint64_t offset = data_begin + entry.begin;
    const bool can_view =
        mmap && entry.end > entry.begin && offset % c10::elementSize(entry.dtype) == 0;
    at::Tensor tensor = can_view ? view(mapping, offset, entry) : copy(file, offset, entry);
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
                "; the format has dense tensors only. Make it dense or use several tensors.");
  LINKBOY_CHECK(!tensor.is_meta(),
                "it is on the meta device and has no data. Materialise it or leave it out.");
}

// Sorted as the official library does it: by dtype, then by name.
std::vector<const NamedTensors::value_type*> sort_for_file(const NamedTensors& tensors) {
  std::vector<const NamedTensors::value_type*> sorted;
  std::set<std::string_view> names;
  for (const auto& named : tensors) {
    LINKBOY_CHECK(named.first != kSafeTensorsMetadata, "a tensor is named ",
                  quote_name(named.first),
                  ", which the format keeps for the metadata. Choose another name.");
    LINKBOY_CHECK(names.insert(named.first).second, "two tensors are named ",
                  quote_name(named.first), "; each name must come once. Rename one.");
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

// The tensor itself if its memory is as the file needs it, or else one copy.
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
  const uint64_t length = json.size();
  file.write(&length, sizeof(length));
  file.write(json.data(), json.size());
  for (const auto* named : sorted) {
    const at::Tensor ready = contiguous_on_cpu(named->second);
    if (ready.numel() > 0) file.write(ready.const_data_ptr(), ready.nbytes());
  }
  file.commit();
}

SafeTensors read_safetensors(const std::filesystem::path& path, bool mmap) {
  const std::string prefix = "cannot read the safetensors file \"" + path.string() + "\": ";
  try {
    return read_file(File(path), mmap);
  } catch (const Error& error) {
    throw Error(prefix + error.what());
  } catch (const c10::Error& error) {
    const std::string_view text = error.what_without_backtrace();
    throw Error(prefix + std::string(text.substr(0, text.find('\n'))));
  } catch (const std::exception& error) {
    throw Error(prefix + error.what());
  }
}

bool is_safetensors(const std::filesystem::path& path) {
  try {
    read_header_size(File(path));
    return true;
  } catch (const Error&) {
    return false;
  }
}

}  // namespace linkboy
