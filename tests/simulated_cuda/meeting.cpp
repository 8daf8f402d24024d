// How the processes of simulated NCCL's ranks meet and exchange data.

#include "meeting.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <chrono>
#include <stdexcept>
#include <thread>

namespace linkboy::simulated_cuda {
namespace {

constexpr std::chrono::microseconds kPoll{20};
constexpr std::chrono::seconds kLimit{60};

}  // namespace

Meeting::Meeting(const std::string& name, int rank, int size) : rank(rank), size(size) {
  if (size > kMaxRanks) throw std::runtime_error("more ranks than a meeting has room for");
  const int file = ::shm_open(name.c_str(), O_CREAT | O_RDWR, 0600);
  if (file < 0 || ::ftruncate(file, sizeof(Shared)) != 0) {
    ::shm_unlink(name.c_str());
    throw std::runtime_error("no shared memory for a meeting");
  }
  void* memory = ::mmap(nullptr, sizeof(Shared), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  ::close(file);
  if (memory == MAP_FAILED) throw std::runtime_error("no addresses for a meeting");
  shared_ = static_cast<Shared*>(memory);
  shared_->processes[rank] = ::getpid();
  ++shared_->num_joined;
  const auto end = std::chrono::steady_clock::now() + kLimit;
  while (shared_->num_joined < size) {
    if (std::chrono::steady_clock::now() > end) {
      ::shm_unlink(name.c_str());
      throw std::runtime_error("a rank did not come");
    }
    std::this_thread::sleep_for(kPoll);
  }
  for (int i = 0; i < size; ++i) {
    const int process = shared_->processes[i];
    ranks_[i] = {static_cast<int>(::syscall(SYS_pidfd_open, process, 0)), POLLIN, 0};
  }
  if (wait_for_all() && rank == 0) ::shm_unlink(name.c_str());
}

bool Meeting::has_lost_rank() const {
  auto ranks = ranks_;
  return ::poll(ranks.data(), size, 0) > 0;
}

void Meeting::exchange(const std::function<void(char* own)>& put,
                       const std::function<void()>& take) {
  put(shared_->slots[rank]);
  if (!wait_for_all()) return;
  take();
  wait_for_all();
}

bool Meeting::wait_for_all() {
  const unsigned round = shared_->round;
  if (++shared_->num_arrived == size) {
    shared_->num_arrived = 0;
    ++shared_->round;
    return true;
  }
  while (shared_->round == round) {
    if (shared_->is_called_off) return false;
    std::this_thread::sleep_for(kPoll);
  }
  return true;
}

}  // namespace linkboy::simulated_cuda
