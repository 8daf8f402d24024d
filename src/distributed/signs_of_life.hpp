#pragma once

#include <torch/csrc/distributed/c10d/Store.hpp>

#include <cstdint>
#include <memory>
#include <string>
#include <thread>
#include <vector>

namespace linkboy {

/// Tells the other processes, through the store, that this one is alive, and finds out which of
/// them are. c10d's own errors do not know ranks. Only a thread of its own talks to the store,
/// which may never answer (TCPStore has no timeout for that): nobody waits for it forever.
class SignsOfLife {
 public:
  /// @param store  With a connection of its own.
  SignsOfLife(c10::intrusive_ptr<c10d::Store> store, int64_t rank);

  /// Says that this process has left.
  ~SignsOfLife();

  struct Report {
    std::vector<int64_t> silent;        // killed, stopped or unreachable
    std::vector<int64_t> left;          // ended by themselves
    std::vector<std::string> failures;  // "rank 2 failed: no such file"
    bool is_store_gone = false;         // nothing is known then
  };

  /// Tells the others why this process does not go on, or with an empty text that it does again.
  void set_failure(const std::string& why);

  /// Listens for about two seconds.
  Report listen(const std::vector<int64_t>& ranks);

  /// Why the ranks cannot go on, as the first that found out has put it: those that notice later
  /// would take the ends of others for the cause. Empty if none has.
  std::string verdict() const;

  /// Finds `mine` to be the cause, if no rank has found one before; returns the one that counts. On
  /// rank 0, which may keep the store, it waits until the others must have read it.
  std::string settle(const std::string& mine);

 private:
  struct State;

  static void run(State& state);

  std::shared_ptr<State> state_;  // the thread's, which may have to be left behind, too
  std::thread thread_;
};

}  // namespace linkboy
