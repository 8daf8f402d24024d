#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace linkboy::simulated_cuda {

/// The bytes from `begin` to before `end`.
struct Range {
  Range(const void* data, std::size_t size)
      : begin(reinterpret_cast<std::uintptr_t>(data)), end(begin + size) {}

  std::uintptr_t begin;
  std::uintptr_t end;
};

/// A vector clock: how much of each stream's work is known to be done before something else begins.
class Clock {
 public:
  bool has_seen(int stream, std::uint64_t time) const { return at(stream) >= time; }
  std::uint64_t at(int stream) const;
  /// Begins the next work of `stream`; returns its time.
  std::uint64_t advance(int stream);
  /// Adds everything that `other` knows of.
  void join(const Clock& other);

 private:
  std::vector<std::uint64_t> times_;
};

/// One piece of work that reads or writes memory.
struct Access {
  int stream;
  std::uint64_t time;
  std::shared_ptr<const std::string> work;  // its name and stream, for reports
};

/// Knows which work read and wrote each byte last, and so finds two accesses that nothing orders.
/// It compares at the time of the launch: whether a race is found does not depend on timing.
class AccessHistory {
 public:
  /// Adds a read by work that begins after everything `before` knows of. Returns a description of
  /// the access that conflicts with it, if there is one.
  std::optional<std::string> add_read(Range range, const Access& access, const Clock& before);
  std::optional<std::string> add_write(Range range, const Access& access, const Clock& before);

  /// Whether `clock` knows that every access to `range` is done.
  bool is_settled(Range range, const Clock& clock);

  /// Memory was freed, after all work on it.
  void forget(Range range);

 private:
  struct Segment {
    std::uintptr_t end;
    std::optional<Access> write;
    std::vector<Access> reads;  // since `write`, at most one for each stream
  };
  using Segments = std::map<std::uintptr_t, Segment>;  // by their first byte; they do not overlap

  void split_at(std::uintptr_t address);
  /// The segments that are within `range`, once those that reach beyond it are split.
  std::pair<Segments::iterator, Segments::iterator> cut_out(Range range);

  Segments segments_;
};

}  // namespace linkboy::simulated_cuda
