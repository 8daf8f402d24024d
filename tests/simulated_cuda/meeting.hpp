#pragma once

#include <poll.h>

#include <array>
#include <atomic>
#include <cstddef>
#include <functional>
#include <string>

namespace linkboy::simulated_cuda {

/// Where the ranks of one communicator meet: memory that their processes share.
class Meeting {
 public:
  static constexpr int kMaxRanks = 16;
  static constexpr std::size_t kSlotSize = std::size_t{1} << 20;

  /// Waits until all ranks have come. Throws std::runtime_error if they do not.
  Meeting(const std::string& name, int rank, int size);

  /// Every rank's `put` fills its own slot, then every rank's `take` may read all slots. Returns at
  /// once if the meeting is called off.
  void exchange(const std::function<void(char* own)>& put, const std::function<void()>& take);
  const char* slot(int rank) const { return shared_->slots[rank]; }

  /// All ranks stop waiting for each other, now and later.
  void call_off() { shared_->is_called_off = true; }

  /// Whether a rank's process has ended.
  bool has_lost_rank() const;

  const int rank;
  const int size;

 private:
  /// In the shared memory, which begins as zeros.
  struct Shared {
    std::atomic<int> num_joined;
    std::atomic<int> num_arrived;
    std::atomic<unsigned> round;
    std::atomic<bool> is_called_off;
    std::atomic<int> processes[kMaxRanks];
    char slots[kMaxRanks][kSlotSize];
  };

  /// Returns whether all ranks are here; if not, the meeting is called off.
  bool wait_for_all();

  Shared* shared_;
  std::array<pollfd, kMaxRanks> ranks_;  // their processes
};

}  // namespace linkboy::simulated_cuda
