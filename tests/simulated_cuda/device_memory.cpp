#include "device_memory.hpp"

#include <sys/mman.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <iterator>

namespace linkboy::simulated_cuda {
namespace {

constexpr std::size_t kPage = 4096;
constexpr std::size_t kReuses = 256;  // more than a program frees and allocates all of the memory

char* reserve(std::size_t size, int protection) {
  void* memory =
      ::mmap(nullptr, size, protection, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED) {
    std::perror("simulated device: no addresses for a device's memory");
    std::abort();
  }
  return static_cast<char*>(memory);
}

}  // namespace

DeviceMemory::DeviceMemory(std::size_t capacity)
    : capacity_(capacity),
      reserved_(kReuses * capacity),
      pointers_(reserve(reserved_, PROT_NONE)),
      bytes_(reserve(reserved_, PROT_READ | PROT_WRITE)) {}

void* DeviceMemory::allocate(std::size_t size) {
  const std::size_t size_of_pages = (std::max<std::size_t>(size, 1) + kPage - 1) / kPage * kPage;
  const std::lock_guard lock(mutex_);
  if (used_ + size > capacity_ || num_given_ + size_of_pages > reserved_) return nullptr;
  void* pointer = pointers_ + num_given_;
  num_given_ += size_of_pages;
  used_ += size;
  blocks_[Range(pointer, size).begin] = size;
  std::memset(bytes_of(pointer), 0xff, size);
  return pointer;
}

std::size_t DeviceMemory::release(const void* pointer) {
  const std::lock_guard lock(mutex_);
  const auto block = blocks_.extract(Range(pointer, 0).begin);
  if (!block) return 0;
  used_ -= block.mapped();
  ::madvise(bytes_of(pointer), block.mapped(), MADV_DONTNEED);
  return block.mapped();
}

bool DeviceMemory::is_allocated(Range range) const {
  const std::lock_guard lock(mutex_);
  const auto after = blocks_.upper_bound(range.begin);
  if (after == blocks_.begin()) return false;
  const auto& [address, size] = *std::prev(after);
  return range.end <= address + size;
}

std::size_t DeviceMemory::num_free() const {
  const std::lock_guard lock(mutex_);
  return capacity_ - used_;
}

}  // namespace linkboy::simulated_cuda
