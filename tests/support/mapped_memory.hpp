#pragma once

#include <sys/mman.h>

#include <cstddef>

namespace linkboy::testing {

/// Resident memory that is requested from the kernel directly. `malloc` can return pages that the
/// process already has; the resident memory would then not grow.
class MappedMemory {
 public:
  static constexpr std::size_t kMebibyte = std::size_t{1} << 20;

  explicit MappedMemory(std::size_t num_mib)
      : num_bytes_(num_mib * kMebibyte),
        start_(::mmap(nullptr, num_bytes_, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0)) {}
  MappedMemory(const MappedMemory&) = delete;
  MappedMemory& operator=(const MappedMemory&) = delete;
  ~MappedMemory() {
    if (is_mapped()) ::munmap(start_, num_bytes_);
  }

  bool is_mapped() const { return start_ != MAP_FAILED; }

 private:
  std::size_t num_bytes_;
  void* start_;
};

}  // namespace linkboy::testing
