#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <random>
#include <string>

#include "../support/temporary_folder.hpp"
#include "linkboy/error.hpp"

extern "C" std::size_t LLVMFuzzerMutate(uint8_t* data, std::size_t size, std::size_t max_size);

// libFuzzer makes small changes and rarely produces a large input. A cost that grows faster than
// the input shows only if a part of the input occurs many times. Therefore one mutation in 16
// repeats a part until the input is full.
extern "C" inline __attribute__((used)) std::size_t LLVMFuzzerCustomMutator(uint8_t* data,
                                                                            std::size_t size,
                                                                            std::size_t max_size,
                                                                            unsigned seed) {
  std::minstd_rand random(seed);
  if (size == 0 || random() % 16 != 0) return LLVMFuzzerMutate(data, size, max_size);
  const std::size_t begin = random() % size;
  const std::size_t length = 1 + random() % std::min<std::size_t>(size - begin, 64);
  const std::size_t room = max_size - size;
  const std::size_t added = room - room % length;
  const std::string part(reinterpret_cast<const char*>(data) + begin, length);
  std::memmove(data + begin + added, data + begin, size - begin);
  for (std::size_t i = 0; i < added; i += length)
    std::memcpy(data + begin + i, part.data(), length);
  return size + added;
}

namespace linkboy::fuzz {

/// A file in memory that has a path during the object's lifetime. Mappings of the file can live
/// longer.
class MemoryFile {
 public:
  MemoryFile(const uint8_t* data, std::size_t size)
      : descriptor_(::memfd_create("fuzz", MFD_CLOEXEC)),
        path_("/proc/self/fd/" + std::to_string(descriptor_)) {
    const bool is_written = descriptor_ >= 0 && (size == 0 || ::write(descriptor_, data, size) ==
                                                                  static_cast<ssize_t>(size));
    if (!is_written) std::abort();
  }
  ~MemoryFile() { ::close(descriptor_); }
  MemoryFile(const MemoryFile&) = delete;
  MemoryFile& operator=(const MemoryFile&) = delete;

  const std::filesystem::path& path() const { return path_; }

 private:
  int descriptor_;
  std::filesystem::path path_;
};

// Values are written here so that the compiler does not remove the reads.
inline volatile uint8_t sink = 0;

/// Reads and writes the first and the last byte of the elements that the tensor's sizes and strides
/// describe, that is, everything that is accessible through the tensor. Strides of 0 can describe a
/// byte billions of times, so the number of visits is limited. The first and the farthest element
/// are always visited.
inline void touch(const at::Tensor& tensor) {
  if (tensor.numel() == 0) return;
  auto* const base = static_cast<uint8_t*>(tensor.mutable_data_ptr());
  const auto item = static_cast<int64_t>(tensor.element_size());
  const auto visit = [&](int64_t index) {
    uint8_t* const element = base + index * item;
    for (uint8_t* byte : {element, element + item - 1}) {
      sink = *byte;
      *byte = *byte;
    }
  };
  int64_t last = 0;
  for (int64_t i = 0; i < tensor.dim(); ++i) last += (tensor.size(i) - 1) * tensor.stride(i);
  visit(0);
  visit(last);
  constexpr int64_t kMaxVisits = 1 << 12;
  for (int64_t visited = 0; visited < std::min(tensor.numel(), kMaxVisits); ++visited) {
    int64_t rest = visited;
    int64_t index = 0;
    for (int64_t i = tensor.dim(); i-- > 0;) {
      index += rest % tensor.size(i) * tensor.stride(i);
      rest /= tensor.size(i);
    }
    visit(index);
  }
}

/// Visits the whole value. The reader promises a tree of bounded size, so endless or deep recursion
/// is a finding.
inline void touch(const c10::IValue& value) {
  if (value.isTensor()) {
    touch(value.toTensor());
  } else if (value.isString()) {
    for (char c : value.toStringRef()) sink = static_cast<uint8_t>(c);
  } else if (value.isTuple()) {
    for (const c10::IValue& item : value.toTupleRef().elements()) touch(item);
  } else if (value.isList()) {
    for (const c10::IValue& item : value.toListRef()) touch(item);
  } else if (value.isGenericDict()) {
    for (const auto& entry : value.toGenericDict()) {
      touch(entry.key());
      touch(entry.value());
    }
  } else if (!value.isNone() && !value.isBool() && !value.isInt() && !value.isDouble()) {
    std::abort();  // Not data.
  }
}

/// A folder in memory for the output of a target. It is removed when the program ends.
inline const std::filesystem::path& output_folder() {
  static const TemporaryFolder folder("/dev/shm");
  return folder.path();
}

/// Runs `read`, which can throw linkboy::Error with a message. Any other exception ends the
/// process.
template <class Read>
void run(const Read& read) {
  try {
    read();
  } catch (const Error& error) {
    if (*error.what() == '\0') std::abort();
  }
}

}  // namespace linkboy::fuzz
