// Memory without a name (memfd) that other processes open through this one, with locks that show
// whether a process is alive, and counters with which the ranks of one host wait for each other.

#include "distributed/shared_memory.hpp"

#include <c10/util/Exception.h>
#include <fcntl.h>
#include <linux/futex.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <random>
#include <string_view>
#include <thread>

#include "distributed/agreement.hpp"
#include "distributed/process_group_implementation.hpp"
#include "util/environment_flag.hpp"

namespace linkboy {
namespace {

using namespace std::chrono_literals;
using Clock = std::chrono::steady_clock;

constexpr const char* kMemoryName = "linkboy";
constexpr std::size_t kPage = 4096;
/// Ranks that run in step arrive sooner than a sleeping process can be woken.
constexpr auto kSpinTime = 50us;
/// How often a sleeping rank checks whether the other one is still alive.
constexpr auto kSleepTime = 100ms;

struct flock write_lock(int64_t byte) {
  struct flock lock {};
  lock.l_type = F_WRLCK;
  lock.l_whence = SEEK_SET;
  lock.l_start = static_cast<off_t>(byte);
  lock.l_len = 1;
  return lock;
}

/// Reserves the pages now. Otherwise a write would kill the process if no memory is free.
bool give_size(int file, std::size_t bytes) {
  rlimit limit{};
  // Beyond this limit, the kernel sends a signal.
  if (getrlimit(RLIMIT_FSIZE, &limit) != 0 || bytes > limit.rlim_cur) return false;
  int error = EINTR;
  while (error == EINTR) error = posix_fallocate(file, 0, static_cast<off_t>(bytes));
  return error == 0;
}

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
  return environment_flag("LINKBOY_SHARED_MEMORY", true) && !group.implementation()->checks_calls;
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

SharedMemoryFile::SharedMemoryFile(int file, std::byte* data, std::size_t bytes)
    : file_(file), data_(data), bytes_(bytes) {}

SharedMemoryFile::~SharedMemoryFile() {
  munmap(data_, bytes_);
  close(file_);
}

std::unique_ptr<SharedMemoryFile> SharedMemoryFile::map(int file, std::size_t bytes) {
  void* data = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  if (data == MAP_FAILED) {
    close(file);
    return nullptr;
  }
  return std::unique_ptr<SharedMemoryFile>(
      new SharedMemoryFile(file, static_cast<std::byte*>(data), bytes));
}

std::unique_ptr<SharedMemoryFile> SharedMemoryFile::create(std::size_t bytes) {
  const int file = memfd_create(kMemoryName, MFD_CLOEXEC | MFD_ALLOW_SEALING);
  if (file < 0) return nullptr;
  // If another process shrank the file, an access beyond its end would kill every rank.
  if (!give_size(file, bytes) || fcntl(file, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_SEAL) != 0) {
    close(file);
    return nullptr;
  }
  return map(file, bytes);
}

std::unique_ptr<SharedMemoryFile> SharedMemoryFile::open(const std::string& path,
                                                         std::size_t bytes) {
  // Opening a file of another kind may have side effects.
  std::array<char, 64> target{};
  if (readlink(path.c_str(), target.data(), target.size() - 1) < 0) return nullptr;
  if (!std::string_view(target.data()).starts_with(std::string("/memfd:") + kMemoryName))
    return nullptr;
  const int file = ::open(path.c_str(), O_RDWR | O_CLOEXEC);
  if (file < 0) return nullptr;
  struct stat status {};
  const int seals = fcntl(file, F_GET_SEALS);
  if (fstat(file, &status) != 0 || status.st_size != static_cast<off_t>(bytes) || seals < 0 ||
      (seals & F_SEAL_SHRINK) == 0) {
    close(file);
    return nullptr;
  }
  return map(file, bytes);
}

std::string SharedMemoryFile::path() const {
  return "/proc/" + std::to_string(getpid()) + "/fd/" + std::to_string(file_);
}

bool SharedMemoryFile::lock(int64_t byte) {
  const struct flock lock = write_lock(byte);
  return fcntl(file_, F_SETLK, &lock) == 0;
}

bool SharedMemoryFile::is_locked_by_other(int64_t byte) const {
  struct flock lock = write_lock(byte);
  return fcntl(file_, F_GETLK, &lock) == 0 && lock.l_type != F_UNLCK;
}

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
