#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>

#include "linkboy/distributed/process_group.hpp"

namespace linkboy {

class SharedMemoryFile;

/// Memory that all ranks of a group share, if they run on one host: each rank has a part that it
/// alone writes and all read. Used by one thread at a time.
class SharedMemorySegment {
 public:
  /// What a rank counts, for the others to wait for.
  enum class Counter { written, read };

  /// Collective.
  /// @return Null on all ranks alike if one cannot map what rank 0 has made (it runs on another
  ///   host or in another container, or there is too little memory), or has
  ///   LINKBOY_SHARED_MEMORY=0 or LINKBOY_DEBUG_COLLECTIVES=1 in its environment.
  static std::shared_ptr<SharedMemorySegment> make(const ProcessGroup& group,
                                                   std::size_t bytes_per_rank);
  ~SharedMemorySegment();
  SharedMemorySegment(const SharedMemorySegment&) = delete;
  SharedMemorySegment& operator=(const SharedMemorySegment&) = delete;

  /// The part of a rank, at the start of a page; zeros at first.
  std::byte* data(int64_t rank) const;

  /// All that this rank did before is seen by who waits for it.
  void advance(Counter counter);

  /// Waits until each other rank has called `advance(counter)` at least `count` times.
  /// @throws c10::DistBackendError immediately if a rank is gone, else after the group's timeout.
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
