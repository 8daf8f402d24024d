#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <mutex>

#include "access_history.hpp"

namespace linkboy::simulated_cuda {

/// The memory of one device. Its pointers lie in a reservation that nobody may read or write, so a
/// host that uses one of them crashes. The bytes themselves are elsewhere, for the work of streams.
/// Fresh and freed bytes are 0xff, which as floating-point numbers are NaN.
class DeviceMemory {
 public:
  explicit DeviceMemory(std::size_t capacity);

  /// Returns null if less than `size` bytes are free.
  void* allocate(std::size_t size);
  /// Returns the block's size, or 0 if `pointer` is not the start of a block.
  std::size_t release(const void* pointer);

  bool owns(const void* pointer) const;
  /// Whether one block holds all of `range`.
  bool is_allocated(Range range) const;
  void* bytes_of(const void* pointer) const;

  std::size_t capacity() const { return capacity_; }
  std::size_t num_free() const;

 private:
  using Blocks = std::map<std::uintptr_t, std::size_t>;  // sizes by address

  void add_free(std::uintptr_t address, std::size_t size);

  std::size_t capacity_;
  std::size_t reserved_;  // more than the capacity, so that fragments cause no shortage
  char* pointers_;
  char* bytes_;
  mutable std::mutex mutex_;
  std::size_t used_ = 0;
  Blocks free_;
  Blocks used_blocks_;
};

}  // namespace linkboy::simulated_cuda
