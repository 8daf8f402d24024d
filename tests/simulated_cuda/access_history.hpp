#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace linkboy::simulated_cuda {

/// The bytes in [begin, end).
struct Range {
  Range(const void* data, std::size_t size)
      : begin(reinterpret_cast<std::uintptr_t>(data)), end(begin + size) {}

  std::uintptr_t begin;
  std::uintptr_t end;
};

/// A vector clock. For each stream, it contains how much work is known to be done before another
/// piece of work begins.
class Clock {
 public:
  bool has_seen(int stream, std::uint64_t time) const { return at(stream) >= time; }
  std::uint64_t at(int stream) const;
  /// Begins the next work of `stream` and returns its time.
  std::uint64_t advance(int stream);
  /// Adds all work that is done according to `other`.
  void join(const Clock& other);

 private:
  std::vector<std::uint64_t> times_;
};

/// A read or write by a piece of work.
struct Access {
  int stream;
  std::uint64_t time;
  std::shared_ptr<const std::string> work;  // the name and the stream of the work, for reports
};

/// Stores which work last read and wrote each byte, to find two accesses that nothing orders. It
/// compares accesses when work is launched, so that finding a race does not depend on timing.
class AccessHistory {
 public:
  /// Add a read or a write by work that begins after all work in `before`. Return a description of
  /// the access that conflicts with it, if there is one.
  /// @{
  std::optional<std::string> add_read(Range range, const Access& access, const Clock& before);
  std::optional<std::string> add_write(Range range, const Access& access, const Clock& before);
  /// @}

  /// Whether every access to `range` is done according to `clock`.
  bool is_settled(Range range, const Clock& clock);

  /// Removes the accesses to memory that was freed after all work on it.
  void forget(Range range);

 private:
  struct Segment {
    std::uintptr_t end;
    std::optional<Access> write;
    std::vector<Access> reads;  // since `write`, at most one for each stream
  };
  using Segments = std::map<std::uintptr_t, Segment>;  // by first byte; without overlaps

  void split_at(std::uintptr_t address);
  /// Splits the segments that extend beyond `range`, and returns those within it.
  std::pair<Segments::iterator, Segments::iterator> cut_out(Range range);

  Segments segments_;
};

}  // namespace linkboy::simulated_cuda
