#include "access_history.hpp"

#include <algorithm>
#include <iterator>

namespace linkboy::simulated_cuda {
namespace {

std::string conflict(const Access& access, const char* does, const Access& earlier,
                     const char* did) {
  return *access.work + ' ' + does + " memory that " + *earlier.work + ' ' + did +
         ", and nothing orders the two";
}

}  // namespace

std::uint64_t Clock::at(int stream) const {
  const auto index = static_cast<std::size_t>(stream);
  return index < times_.size() ? times_[index] : 0;
}

std::uint64_t Clock::advance(int stream) {
  const auto index = static_cast<std::size_t>(stream);
  if (index >= times_.size()) times_.resize(index + 1);
  return ++times_[index];
}

void Clock::join(const Clock& other) {
  if (other.times_.size() > times_.size()) times_.resize(other.times_.size());
  for (std::size_t i = 0; i < other.times_.size(); ++i) {
    times_[i] = std::max(times_[i], other.times_[i]);
  }
}

std::optional<std::string> AccessHistory::add_read(Range range, const Access& access,
                                                   const Clock& before) {
  std::optional<std::string> found;
  auto [segment, end] = cut_out(range);
  std::uintptr_t covered = range.begin;
  const auto fill_gap = [&](std::uintptr_t until) {
    if (covered < until) segments_[covered] = {until, {}, {access}};
  };
  for (; segment != end; ++segment) {
    fill_gap(segment->first);
    auto& [last, write, reads] = segment->second;
    covered = last;
    if (write && !before.has_seen(write->stream, write->time)) {
      found = conflict(access, "reads", *write, "writes");
    }
    std::erase_if(reads, [&](const Access& read) { return read.stream == access.stream; });
    reads.push_back(access);
  }
  fill_gap(range.end);
  return found;
}

std::optional<std::string> AccessHistory::add_write(Range range, const Access& access,
                                                    const Clock& before) {
  std::optional<std::string> found;
  const auto [first, end] = cut_out(range);
  for (auto segment = first; segment != end; ++segment) {
    const auto& [last, write, reads] = segment->second;
    if (write && !before.has_seen(write->stream, write->time)) {
      found = conflict(access, "writes", *write, "writes");
    }
    for (const Access& read : reads) {
      if (!before.has_seen(read.stream, read.time))
        found = conflict(access, "writes", read, "reads");
    }
  }
  segments_.erase(first, end);
  if (range.begin < range.end) segments_[range.begin] = {range.end, access, {}};
  return found;
}

bool AccessHistory::is_settled(Range range, const Clock& clock) {
  const auto [first, end] = cut_out(range);
  return std::all_of(first, end, [&](const auto& entry) {
    const auto& [last, write, reads] = entry.second;
    return (!write || clock.has_seen(write->stream, write->time)) &&
           std::all_of(reads.begin(), reads.end(),
                       [&](const Access& read) { return clock.has_seen(read.stream, read.time); });
  });
}

void AccessHistory::forget(Range range) {
  const auto [first, end] = cut_out(range);
  segments_.erase(first, end);
}

void AccessHistory::split_at(std::uintptr_t address) {
  auto segment = segments_.lower_bound(address);
  if (segment == segments_.begin()) return;
  --segment;
  if (segment->second.end <= address) return;
  segments_[address] = segment->second;
  segment->second.end = address;
}

std::pair<AccessHistory::Segments::iterator, AccessHistory::Segments::iterator>
AccessHistory::cut_out(Range range) {
  if (range.begin >= range.end) return {segments_.end(), segments_.end()};
  split_at(range.begin);
  split_at(range.end);
  return {segments_.lower_bound(range.begin), segments_.lower_bound(range.end)};
}

}  // namespace linkboy::simulated_cuda
