#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "linkboy/distributed/process_group.hpp"

namespace linkboy {

/// Memory that other processes on this host can also map. It does not have a name in a file system,
/// and nothing remains of it after the processes end, even if they are killed.
class SharedMemoryFile {
 public:
  /// Creates memory filled with zeros.
  /// @return Null if there is not enough memory, or if the system does not support this kind of
  ///         memory.
  static std::unique_ptr<SharedMemoryFile> create(std::size_t bytes);

  /// Maps the memory of another process.
  /// @return Null unless `path`, as returned by that process's `path()`, refers to a file that
  ///         `create` made with this number of bytes.
  static std::unique_ptr<SharedMemoryFile> open(const std::string& path, std::size_t bytes);

  ~SharedMemoryFile();
  SharedMemoryFile(const SharedMemoryFile&) = delete;
  SharedMemoryFile& operator=(const SharedMemoryFile&) = delete;

  /// The memory; aligned to a page.
  std::byte* data() const { return data_; }

  /// The path with which other processes in the same process namespace can open it.
  std::string path() const;

  /// Locks a byte of the file. The lock ends with this object or with the process.
  bool lock(int64_t byte);
  bool is_locked_by_other(int64_t byte) const;

 private:
  SharedMemoryFile(int file, std::byte* data, std::size_t bytes);
  static std::unique_ptr<SharedMemoryFile> map(int file, std::size_t bytes);

  int file_;
  std::byte* data_;
  std::size_t bytes_;
};

/// Memory that all ranks of a group share if they run on one host. Each rank has a part that only
/// it writes and all ranks read. Only one thread at a time may use it.
class SharedMemorySegment {
 public:
  /// Counters of a rank for which the other ranks can wait.
  enum class Counter { written, read };

  /// Creates the memory of a group.
  /// @return Null on all ranks if any of them cannot map the memory of rank 0 (because it runs on
  ///         another host or in another container, or there is too little memory), or has
  ///         LINKBOY_SHARED_MEMORY=0 or LINKBOY_DEBUG_COLLECTIVES=1 in its environment.
  /// @note Collective.
  static std::shared_ptr<SharedMemorySegment> make(const ProcessGroup& group,
                                                   std::size_t bytes_per_rank);
  ~SharedMemorySegment();
  SharedMemorySegment(const SharedMemorySegment&) = delete;
  SharedMemorySegment& operator=(const SharedMemorySegment&) = delete;

  /// Returns the part of a rank, which starts at a page and is filled with zeros at first.
  std::byte* data(int64_t rank) const;

  /// Increments a counter of this rank. A rank that waits for it sees everything that this rank
  /// wrote before.
  void advance(Counter counter);

  /// Waits until each other rank has called `advance(counter)` at least `count` times.
  /// @throws c10::DistBackendError immediately if a rank is gone, or after the group's timeout.
  void wait_for_others(Counter counter, int64_t count) const;

 private:
  struct Line;

  SharedMemorySegment(std::unique_ptr<SharedMemoryFile> file, std::size_t bytes_per_rank,
                      const ProcessGroup& group);
  Line& line(int64_t rank, Counter counter) const;
  void wait_for(int64_t rank, Counter counter, uint32_t count) const;

  std::unique_ptr<SharedMemoryFile> file_;
  std::size_t bytes_per_rank_;
  int64_t rank_;
  int64_t num_ranks_;
  std::chrono::milliseconds timeout_;
};

}  // namespace linkboy
