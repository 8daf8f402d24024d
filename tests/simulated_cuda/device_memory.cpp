#include "device_memory.hpp"

#include <sys/mman.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <iterator>

namespace linkboy::simulated_cuda {
namespace {

constexpr std::size_t kAlignment = 512;  // as in cudaMalloc

char* reserve(std::size_t size, int protection) {
  void* memory =
      ::mmap(nullptr, size, protection, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED) {
    std::perror("simulated device: no addresses for a device's memory");
    std::abort();
  }
  return static_cast<char*>(memory);
}

std::uintptr_t address_of(const void* pointer) { return reinterpret_cast<std::uintptr_t>(pointer); }

}  // namespace

DeviceMemory::DeviceMemory(std::size_t capacity)
    : capacity_(capacity),
      reserved_(2 * capacity),
      pointers_(reserve(reserved_, PROT_NONE)),
      bytes_(reserve(reserved_, PROT_READ | PROT_WRITE)),
      free_{{address_of(pointers_), reserved_}} {}

void* DeviceMemory::allocate(std::size_t size) {
  size = (std::max<std::size_t>(size, 1) + kAlignment - 1) / kAlignment * kAlignment;
  const std::lock_guard lock(mutex_);
  if (used_ + size > capacity_) return nullptr;
  const auto block = std::find_if(free_.begin(), free_.end(),
                                  [&](const auto& free) { return free.second >= size; });
  if (block == free_.end()) return nullptr;
  const auto [address, available] = *block;
  free_.erase(block);
  if (available > size) free_[address + size] = available - size;
  used_blocks_[address] = size;
  used_ += size;
  void* pointer = pointers_ + (address - address_of(pointers_));
  std::memset(bytes_of(pointer), kPoison, size);
  return pointer;
}

std::size_t DeviceMemory::release(const void* pointer) {
  const std::lock_guard lock(mutex_);
  const auto block = used_blocks_.find(address_of(pointer));
  if (block == used_blocks_.end()) return 0;
  const auto [address, size] = *block;
  used_blocks_.erase(block);
  used_ -= size;
  std::memset(bytes_of(pointer), kPoison, size);
  add_free(address, size);
  return size;
}

void DeviceMemory::add_free(std::uintptr_t address, std::size_t size) {
  const auto after = free_.lower_bound(address);
  if (after != free_.end() && address + size == after->first) {
    size += after->second;
    free_.erase(after);
  }
  const auto next = free_.lower_bound(address);
  if (next != free_.begin()) {
    const auto before = std::prev(next);
    if (before->first + before->second == address) {
      before->second += size;
      return;
    }
  }
  free_[address] = size;
}

bool DeviceMemory::owns(const void* pointer) const {
  return pointer >= pointers_ && pointer < pointers_ + reserved_;
}

bool DeviceMemory::is_allocated(Range range) const {
  const std::lock_guard lock(mutex_);
  auto block = used_blocks_.upper_bound(range.begin);
  if (block == used_blocks_.begin()) return false;
  --block;
  return range.end <= block->first + block->second;
}

void* DeviceMemory::bytes_of(const void* pointer) const {
  return bytes_ + (static_cast<const char*>(pointer) - pointers_);
}

std::size_t DeviceMemory::num_free() const {
  const std::lock_guard lock(mutex_);
  return capacity_ - used_;
}

}  // namespace linkboy::simulated_cuda
