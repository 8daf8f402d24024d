#include "stream.hpp"

#include <algorithm>
#include <thread>

#include "settings.hpp"

namespace linkboy::simulated_cuda {

std::uint64_t Stream::push(Work work) {
  const std::lock_guard lock(mutex_);
  // The thread starts with the first work, because LibTorch creates many more streams than it uses.
  if (!has_thread_) std::thread([this] { run(); }).detach();
  has_thread_ = true;
  items_.push_back({std::move(work), std::chrono::steady_clock::now() + settings().latency});
  if (items_.size() == 1) wake_.notify_one();
  return ++num_pushed_;
}

std::uint64_t Stream::last_position() const {
  const std::lock_guard lock(mutex_);
  return num_pushed_;
}

bool Stream::is_done(std::uint64_t position) const {
  const std::lock_guard lock(mutex_);
  return num_done_ >= position;
}

void Stream::wait(std::uint64_t position, std::chrono::seconds limit) {
  std::unique_lock lock(mutex_);
  wanted_ = std::max(wanted_, position);
  wake_.notify_one();
  finished_.wait_for(lock, limit, [&] { return num_done_ >= position; });
}

std::string Stream::name() const {
  return "stream " + std::to_string(id) + " of device " + std::to_string(device);
}

void Stream::run() {
  std::unique_lock lock(mutex_);
  while (true) {
    wake_.wait(lock, [&] { return !items_.empty(); });
    wake_.wait_until(lock, items_.front().begin, [&] { return wanted_ > num_done_; });
    Item item = std::move(items_.front());
    items_.pop_front();
    lock.unlock();
    item.work();
    item.work = nullptr;  // releases its objects before the work counts as done
    lock.lock();
    ++num_done_;
    finished_.notify_all();
  }
}

}  // namespace linkboy::simulated_cuda
