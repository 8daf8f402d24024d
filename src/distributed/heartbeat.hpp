#pragma once

#include <torch/csrc/distributed/c10d/Store.hpp>

#include <cstdint>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace linkboy {

/// Publishes in the store that this process is alive, and determines which of the other processes
/// are alive. This is necessary because the errors of c10d do not contain ranks. Only a separate
/// thread communicates with the store, which may never answer (TCPStore has no timeout for that),
/// so that no other thread waits for it forever.
class Heartbeat {
 public:
  /// @param store  A store with a separate connection.
  Heartbeat(c10::intrusive_ptr<c10d::Store> store, int64_t rank);

  /// Publishes that this process has left.
  ~Heartbeat();

  /// Publishes why this process has stopped; an empty text means that it continues.
  void set_failure(const std::string& why);

  /// Counts a collective at its beginning. A rank that has made fewer calls than the others keeps
  /// them waiting.
  void count_call();

  /// The known facts about a failed collective.
  struct Failure {
    /// The call that a rank did not make in time; empty if the call failed for another reason.
    std::string late_call;
    /// The cause if all ranks are alive and none is late.
    std::string otherwise;
  };

  /// Returns why `ranks` cannot continue and, if a rank is responsible, where to look. Takes
  /// several seconds. The first rank that finds the cause publishes it, because ranks that fail
  /// later would mistake the exit of other ranks for the cause. Rank 0, which may host the store,
  /// waits long enough for the others to read it. Any thread may call it.
  std::string find_cause(const std::vector<int64_t>& ranks, const Failure& failure);

  /// Whether a cause has been found, by this rank or another. Any thread may call it.
  bool has_found_cause() const;

 private:
  struct State;

  static void run(State& state);
  std::string search_cause(const std::vector<int64_t>& ranks, const Failure& failure);
  std::string settle(const std::string& mine);

  std::shared_ptr<State> state_;  // shared with the thread, which may have to be detached
  std::thread thread_;
};

/// Ranks sorted by two signs of life each, which were read two seconds apart. A rank that works
/// normally is not in any list.
struct SortedRanks {
  std::vector<int64_t> silent{};                          // killed, stopped or unreachable
  std::vector<int64_t> left{};                            // ended on their own
  std::vector<std::pair<int64_t, std::string>> failed{};  // with their messages
  std::vector<int64_t> behind{};  // alive, but have made fewer calls than another rank
};

/// Sorts the ranks.
/// @param before, after  The signs of life of `ranks`, in the same order.
SortedRanks sort_ranks(const std::vector<int64_t>& ranks, const std::vector<std::string>& before,
                       const std::vector<std::string>& after);

/// Returns a sentence without its period: the most certain cause and, if ranks are responsible,
/// where to look.
std::string describe_cause(const SortedRanks& sorted, const Heartbeat::Failure& failure,
                           int64_t own_rank);

}  // namespace linkboy
