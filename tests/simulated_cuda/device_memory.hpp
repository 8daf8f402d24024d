#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <mutex>

#include "access_history.hpp"

namespace linkboy::simulated_cuda {

/// The memory of one device. Its pointers refer to reserved addresses that cannot be read or
/// written, so the program crashes if the host uses one of them. The work of streams uses the bytes
/// themselves, which are at other addresses. New bytes are 0xff, which makes floating-point numbers
/// NaN. Addresses are never used twice.
class DeviceMemory {
 public:
  explicit DeviceMemory(std::size_t capacity);

  /// Returns null if fewer than `size` bytes are free.
  void* allocate(std::size_t size);
  /// Frees a block. Returns its size, or 0 if `pointer` is not the start of a block.
  std::size_t release(const void* pointer);

  bool owns(const void* pointer) const {
    return pointer >= pointers_ && pointer < pointers_ + reserved_;
  }
  /// Whether a single block contains all of `range`.
  bool is_allocated(Range range) const;
  void* bytes_of(const void* pointer) const {
    return bytes_ + (static_cast<const char*>(pointer) - pointers_);
  }

  std::size_t capacity() const { return capacity_; }
  std::size_t num_free() const;

 private:
  std::size_t capacity_;
  std::size_t reserved_;
  char* pointers_;
  char* bytes_;
  mutable std::mutex mutex_;
  std::size_t used_ = 0;
  std::size_t num_given_ = 0;                     // number of bytes whose addresses were used
  std::map<std::uintptr_t, std::size_t> blocks_;  // sizes by address
};

}  // namespace linkboy::simulated_cuda
