#pragma once

#include <torch/csrc/distributed/c10d/Store.hpp>

#include <cstdint>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace linkboy {

/// Tells the other processes, through the store, that this one is alive, and finds out which of
/// them are. c10d's own errors do not know ranks. Only a thread of its own talks to the store,
/// which may never answer (TCPStore has no timeout for that): nobody waits for it forever.
class Heartbeat {
 public:
  /// @param store  With a connection of its own.
  Heartbeat(c10::intrusive_ptr<c10d::Store> store, int64_t rank);

  /// Says that this process has left.
  ~Heartbeat();

  /// Tells the others why this process has stopped; an empty text says that it continues.
  void set_failure(const std::string& why);

  /// A call that all ranks make together begins: one that has made fewer keeps the others waiting.
  void count_call();

  /// What is known where a collective call did not work.
  struct Failure {
    /// The call that some rank has not made in time; empty if the call failed for another reason.
    std::string late_call;
    /// The cause if all ranks are alive and none is late.
    std::string otherwise;
  };

  /// Returns why `ranks` cannot continue, and where to look if it names one. It takes some seconds.
  /// The first rank that knows the cause tells all: those that notice later would take the ends of
  /// others for the cause. On rank 0, which may keep the store, it waits until the others must have
  /// read it. Any thread may call it.
  std::string find_cause(const std::vector<int64_t>& ranks, const Failure& failure);

  /// Whether a cause has been found, by this rank or another. Any thread may call it.
  bool has_found_cause() const;

 private:
  struct State;

  static void run(State& state);
  std::string search_cause(const std::vector<int64_t>& ranks, const Failure& failure);
  std::string settle(const std::string& mine);

  std::shared_ptr<State> state_;  // the thread's, which may have to be left behind, too
  std::thread thread_;
};

/// Ranks by what two of their signs, two seconds apart, say of them. A rank that does its part is
/// in none of the lists.
struct SortedRanks {
  std::vector<int64_t> silent{};                          // killed, stopped or unreachable
  std::vector<int64_t> left{};                            // ended by themselves
  std::vector<std::pair<int64_t, std::string>> failed{};  // with what they said
  std::vector<int64_t> behind{};  // alive, and have made fewer calls than another rank
};

/// @param before, after  The sign of each of `ranks`.
SortedRanks sort_ranks(const std::vector<int64_t>& ranks, const std::vector<std::string>& before,
                       const std::vector<std::string>& after);

/// Returns a sentence without its period: the most certain cause, and where to look if it names
/// ranks.
std::string describe_cause(const SortedRanks& sorted, const Heartbeat::Failure& failure,
                           int64_t own_rank);

}  // namespace linkboy
