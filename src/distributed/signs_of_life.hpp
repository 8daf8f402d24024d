#pragma once

#include <torch/csrc/distributed/c10d/Store.hpp>

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <thread>
#include <vector>

namespace linkboy {

/// Tells the other processes, through the store, that this one is alive, from a thread of its own;
/// and finds out which of them are. c10d's own errors do not know ranks.
class SignsOfLife {
 public:
  /// @param store  With a connection of its own.
  SignsOfLife(c10::intrusive_ptr<c10d::Store> store, int64_t rank);

  /// Says that this process has left.
  ~SignsOfLife();

  struct Report {
    std::vector<int64_t> silent;  // killed, stopped or unreachable
    std::vector<int64_t> left;    // ended by themselves
    bool is_store_gone = false;   // nothing is known then
  };

  /// Listens for about two seconds.
  Report listen(const std::vector<int64_t>& ranks);

 private:
  void run();
  std::vector<std::string> read(const std::vector<int64_t>& ranks);

  c10::intrusive_ptr<c10d::Store> store_;
  int64_t rank_;
  std::mutex mutex_;  // guards the store's connection and is_ending_
  std::condition_variable ending_;
  bool is_ending_ = false;
  std::thread thread_;
};

}  // namespace linkboy
