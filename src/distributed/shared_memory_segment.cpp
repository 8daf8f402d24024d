// Shared memory with counters, through which the ranks of one host wait for each other.

#include "distributed/shared_memory_segment.hpp"

#include <c10/util/Exception.h>
#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <random>
#include <string_view>
#include <thread>

#include "distributed/process_group_implementation.hpp"
#include "distributed/shared_memory_file.hpp"

namespace linkboy {
namespace {

using namespace std::chrono_literals;
using Clock = std::chrono::steady_clock;

constexpr std::size_t kPage = 4096;
/// Ranks that run in step arrive sooner than a sleeping process can be woken.
constexpr auto kSpinTime = 50us;
/// How often a sleeping rank checks whether the other one is still alive.
constexpr auto kSleepTime = 100ms;

std::size_t whole_pages(std::size_t bytes) { return (bytes + kPage - 1) / kPage * kPage; }

/// Stored at the start of the memory. It proves that two processes map the same memory: a path from
/// one host may lead to a file of another run on another host.
using Token = std::array<uint32_t, 8>;

Token random_token() {
  std::random_device source;
  Token token;
  std::generate(token.begin(), token.end(), std::ref(source));
  return token;
}

std::string text_of(const Token& token) {
  return {reinterpret_cast<const char*>(token.data()), sizeof(token)};
}

bool is_wanted(const ProcessGroup& group) {
  const char* choice = std::getenv("LINKBOY_SHARED_MEMORY");
  const bool is_refused = choice != nullptr && std::string_view(choice) == "0";
  return !is_refused && !group.implementation()->checks_calls;
}

bool is_true_on_all_ranks(const ProcessGroup& group, bool mine) {
  const auto all = group.all_gather_bytes(mine ? "1" : "0");
  return std::all_of(all.begin(), all.end(), [](const auto& each) { return each == "1"; });
}

/// Maps the same memory on all ranks, or on none.
std::unique_ptr<SharedMemoryFile> map_together(const ProcessGroup& group, std::size_t bytes) {
  std::unique_ptr<SharedMemoryFile> file;
  std::string invitation;
  if (group.rank() == 0 && is_wanted(group)) {
    file = SharedMemoryFile::create(bytes);
    if (file) {
      const Token token = random_token();
      std::memcpy(file->data(), token.data(), sizeof(token));
      invitation = text_of(token) + file->path();
    }
  }
  invitation = group.broadcast_bytes(invitation, 0);
  if (invitation.empty()) return nullptr;
  const auto token = invitation.substr(0, sizeof(Token));
  if (group.rank() != 0 && is_wanted(group)) {
    file = SharedMemoryFile::open(invitation.substr(sizeof(Token)), bytes);
    if (file && std::memcmp(file->data(), token.data(), token.size()) != 0) file.reset();
  }
  if (!is_true_on_all_ranks(group, file && file->lock(group.rank()))) return nullptr;
  return file;
}

bool has_reached(const std::atomic<uint32_t>& value, uint32_t count) {
  // The counters may have wrapped around.
  return static_cast<int32_t>(value.load(std::memory_order_acquire) - count) >= 0;
}

void sleep_while_equal(std::atomic<uint32_t>& value, uint32_t seen) {
  // std::atomic::wait works only within one process.
  const timespec time{0, std::chrono::nanoseconds(kSleepTime).count()};
  syscall(SYS_futex, &value, FUTEX_WAIT, seen, &time, nullptr, 0);
}

void wake_all(std::atomic<uint32_t>& value) {
  syscall(SYS_futex, &value, FUTEX_WAKE, INT32_MAX, nullptr, nullptr, 0);
}

}  // namespace

/// A counter of one rank.
struct alignas(64) SharedMemorySegment::Line {
  std::atomic<uint32_t> value;
  std::atomic<uint32_t> num_sleeping;
  static_assert(std::atomic<uint32_t>::is_always_lock_free);
};

std::shared_ptr<SharedMemorySegment> SharedMemorySegment::make(const ProcessGroup& group,
                                                               std::size_t bytes_per_rank) {
  // A group that a test creates does not have separate processes.
  if (group.size() == 1 || !group.implementation()->heartbeat) return nullptr;
  bytes_per_rank = whole_pages(bytes_per_rank);
  const auto num_ranks = static_cast<std::size_t>(group.size());
  const std::size_t head = kPage + whole_pages(num_ranks * 2 * sizeof(Line));
  auto file = map_together(group, head + num_ranks * bytes_per_rank);
  if (!file) return nullptr;
  return std::shared_ptr<SharedMemorySegment>(
      new SharedMemorySegment(std::move(file), bytes_per_rank, group));
}

SharedMemorySegment::SharedMemorySegment(std::unique_ptr<SharedMemoryFile> file,
                                         std::size_t bytes_per_rank, const ProcessGroup& group)
    : file_(std::move(file)),
      bytes_per_rank_(bytes_per_rank),
      rank_(group.rank()),
      num_ranks_(group.size()),
      timeout_(group.timeout()) {}

SharedMemorySegment::~SharedMemorySegment() = default;

std::byte* SharedMemorySegment::data(int64_t rank) const {
  const std::size_t head = kPage + whole_pages(num_ranks_ * 2 * sizeof(Line));
  return file_->data() + head + rank * bytes_per_rank_;
}

SharedMemorySegment::Line& SharedMemorySegment::line(int64_t rank, Counter counter) const {
  // The file is filled with zeros, which equals the state of a newly constructed Line.
  auto* lines = reinterpret_cast<Line*>(file_->data() + kPage);
  return lines[2 * rank + static_cast<int64_t>(counter)];
}

void SharedMemorySegment::advance(Counter counter) {
  Line& mine = line(rank_, counter);
  // Both operations are sequentially consistent: a rank that goes to sleep either sees the new
  // value or is seen here.
  mine.value.fetch_add(1);
  if (mine.num_sleeping.load() > 0) wake_all(mine.value);
}

void SharedMemorySegment::wait_for_others(Counter counter, int64_t count) const {
  for (int64_t rank = 0; rank < num_ranks_; ++rank) {
    if (rank != rank_) wait_for(rank, counter, static_cast<uint32_t>(count));
  }
}

void SharedMemorySegment::wait_for(int64_t rank, Counter counter, uint32_t count) const {
  Line& its = line(rank, counter);
  if (has_reached(its.value, count)) return;
  const auto begin = Clock::now();
  while (Clock::now() - begin < kSpinTime) {
    std::this_thread::yield();
    if (has_reached(its.value, count)) return;
  }
  its.num_sleeping.fetch_add(1);
  while (true) {
    const bool is_gone = !file_->is_locked_by_other(rank);
    const uint32_t seen = its.value.load();
    if (has_reached(its.value, count)) break;
    const bool is_late = Clock::now() - begin > timeout_;
    if (is_gone || is_late) {
      its.num_sleeping.fetch_sub(1);
      C10_THROW_ERROR(DistBackendError,
                      c10::str("the shared memory of rank ", rank, " of the group was ",
                               is_gone ? "released" : "not written in time"));
    }
    sleep_while_equal(its.value, seen);
  }
  its.num_sleeping.fetch_sub(1);
}

}  // namespace linkboy
