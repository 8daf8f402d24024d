#pragma once

#include <poll.h>

#include <array>
#include <atomic>
#include <cstddef>
#include <functional>
#include <string>

namespace linkboy::simulated_cuda {

/// Memory that the processes of the ranks of one communicator share.
class Meeting {
 public:
  static constexpr int kMaxRanks = 16;
  static constexpr std::size_t kSlotSize = std::size_t{1} << 20;

  /// Waits until all ranks have joined.
  /// @throws std::runtime_error if they do not join in time, or if the memory cannot be created.
  Meeting(const std::string& name, int rank, int size);

  /// Calls `put` on every rank, which fills the rank's own slot, then `take`, which may read all
  /// slots. Returns immediately if the meeting was called off.
  void exchange(const std::function<void(char* own)>& put, const std::function<void()>& take);
  const char* slot(int rank) const { return shared_->slots[rank]; }

  /// Makes all ranks stop waiting for each other, now and in later calls.
  void call_off() { shared_->is_called_off = true; }

  /// Whether the process of a rank has ended.
  bool has_lost_rank() const;

  const int rank;
  const int size;

 private:
  /// The contents of the shared memory, which is initially zero.
  struct Shared {
    std::atomic<int> num_joined;
    std::atomic<int> num_arrived;
    std::atomic<unsigned> round;
    std::atomic<bool> is_called_off;
    std::atomic<int> processes[kMaxRanks];
    char slots[kMaxRanks][kSlotSize];
  };

  /// Waits for all ranks. Returns whether they have arrived; false if the meeting was called off.
  bool wait_for_all();

  Shared* shared_;
  std::array<pollfd, kMaxRanks> ranks_;  // the processes of the ranks
};

}  // namespace linkboy::simulated_cuda
