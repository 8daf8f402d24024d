#include <ATen/DeviceAccelerator.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <algorithm>
#include <condition_variable>
#include <exception>
#include <mutex>
#include <thread>
#include <variant>
#include <vector>

#include "data/batch_fetcher.hpp"

namespace linkboy {
namespace {

/// The device that the calling thread has chosen, if it is not the first. A new thread has the
/// first one until it chooses another.
std::optional<c10::Device> chosen_device() {
  if (at::accelerator::deviceCount() == 0) return std::nullopt;
  const auto type = *at::accelerator::getAccelerator();
  const c10::Device device = c10::impl::VirtualGuardImpl(type).getDevice();
  return device.index() > 0 ? std::optional(device) : std::nullopt;
}

/// Worker threads make batches and put them into a ring of slots; the reader takes slot after slot,
/// so the order is that of the epoch whoever is faster. A worker waits while its batch would be
/// more than a ring ahead of the reader: the number of batches in memory is bounded.
///
/// Workers that share the data claim the next batch when they are free. Workers with copies take
/// every n-th batch, because a copy may have a state (a random engine): the same run then gives the
/// same batches again, whichever worker is faster. For the same reason a reader that leaves early
/// leaves the copies where they would be if all workers had kept a whole ring ahead of it.
class PrefetchIterator final : public BatchIterator {
 public:
  PrefetchIterator(std::shared_ptr<WorkerDatasets> source, const DataLoaderOptions& options,
                   int64_t epoch, int64_t first, int64_t end)
      : source_(std::move(source)), next_to_claim_(first), next_to_read_(first), end_(end) {
    const int64_t num_workers = std::min(*options.num_workers, std::max<int64_t>(end - first, 1));
    slots_.resize(num_workers * *options.prefetch_factor);
    datasets_ = source_->take(num_workers);
    stride_ = num_workers > 1 && !datasets_[0].is_same_as(datasets_[1]) ? num_workers : 0;
    for (int64_t i = 0; i < num_workers; ++i) {
      workers_.emplace_back(
          [this, own = first + i, maker = BatchFetcher(datasets_[i], options, epoch)](
              std::stop_token stop) { work(maker, own, stop); });
    }
  }

  ~PrefetchIterator() override {
    if (stride_ > 0) {
      const std::lock_guard lock(mutex_);
      end_ = std::min(end_, next_to_read_ + static_cast<int64_t>(slots_.size()));
      taken_.notify_all();
    } else {
      for (auto& worker : workers_) worker.request_stop();
    }
    for (auto& worker : workers_) worker.join();
    source_->give_back(std::move(datasets_));
  }

  std::optional<Batch> next() override {
    if (next_to_read_ >= end_) return std::nullopt;
    std::unique_lock lock(mutex_);
    auto& slot = slot_of(next_to_read_);
    made_.wait(lock, [&] { return !std::holds_alternative<std::monostate>(slot); });
    Slot taken = std::exchange(slot, std::monostate());
    auto* failure = std::get_if<std::exception_ptr>(&taken);
    next_to_read_ = failure ? end_ : next_to_read_ + 1;
    if (failure) has_failed_ = true;
    lock.unlock();
    taken_.notify_all();
    if (failure) std::rethrow_exception(*failure);
    return std::get<Batch>(std::move(taken));
  }

 private:
  using Slot = std::variant<std::monostate, Batch, std::exception_ptr>;

  Slot& slot_of(int64_t batch_index) { return slots_[batch_index % slots_.size()]; }

  /// @param own  The first batch of this worker, if it takes every n-th.
  void work(const BatchFetcher& maker, int64_t own, const std::stop_token& stop) {
    if (device_) c10::impl::VirtualGuardImpl(device_->type()).setDevice(*device_);
    while (true) {
      std::unique_lock lock(mutex_);
      const int64_t index = stride_ > 0 ? own : next_to_claim_;
      if (stop.stop_requested() || has_failed_ || index >= end_) return;
      own += stride_;
      ++next_to_claim_;
      const auto in_reach = [&] {
        return index >= end_ || index < next_to_read_ + static_cast<int64_t>(slots_.size());
      };
      if (!taken_.wait(lock, stop, in_reach) || index >= end_) return;
      lock.unlock();
      Slot result;
      try {
        result = maker.make(index);
      } catch (...) {
        result = std::current_exception();
      }
      lock.lock();
      slot_of(index) = std::move(result);
      lock.unlock();
      made_.notify_one();
    }
  }

  const std::shared_ptr<WorkerDatasets> source_;
  std::vector<Dataset> datasets_;
  int64_t stride_ = 0;  // 0: the workers claim batches
  std::mutex mutex_;    // guards what comes behind it, but for device_ and workers_
  std::condition_variable made_;
  std::condition_variable_any taken_;
  std::vector<Slot> slots_;
  int64_t next_to_claim_;
  int64_t next_to_read_;
  bool has_failed_ = false;
  int64_t end_;
  const std::optional<c10::Device> device_ = chosen_device();
  std::vector<std::jthread> workers_;  // last: joined before the rest goes
};

}  // namespace

std::vector<Dataset> WorkerDatasets::take(int64_t num_workers) {
  const std::lock_guard lock(mutex_);
  const auto num_taken = static_cast<std::ptrdiff_t>(
      std::min<std::size_t>(idle_.size(), static_cast<std::size_t>(num_workers)));
  std::vector<Dataset> taken(idle_.begin(), idle_.begin() + num_taken);
  idle_.erase(idle_.begin(), idle_.begin() + num_taken);
  while (static_cast<int64_t>(taken.size()) < num_workers) taken.push_back(dataset_.for_worker());
  return taken;
}

void WorkerDatasets::give_back(std::vector<Dataset> datasets) {
  const std::lock_guard lock(mutex_);
  idle_.insert(idle_.begin(), datasets.begin(), datasets.end());
}

std::unique_ptr<BatchIterator> prefetch(std::shared_ptr<WorkerDatasets> datasets,
                                        const DataLoaderOptions& options, int64_t epoch,
                                        int64_t first, int64_t end) {
  return std::make_unique<PrefetchIterator>(std::move(datasets), options, epoch, first, end);
}

}  // namespace linkboy
