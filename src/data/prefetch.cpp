// Makes the batches of an epoch in order, in the loop or ahead of it on worker threads.

#include <ATen/DeviceAccelerator.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <exception>
#include <mutex>
#include <thread>
#include <variant>
#include <vector>

#include "data/batch_fetcher.hpp"
#include "linkboy/error.hpp"

namespace linkboy {
namespace {

/// Prepares the batches [first, end) on the calling thread.
class InlineIterator final : public BatchIterator {
 public:
  InlineIterator(std::unique_ptr<BatchMaker> maker, int64_t first, int64_t end)
      : maker_(std::move(maker)), next_(first), end_(end) {}

  std::optional<Batch> next() override {
    if (next_ < end_ && !maker_->read(next_)) end_ = next_;
    if (next_ >= end_) return std::nullopt;
    return maker_->make(next_++);
  }

 private:
  std::unique_ptr<BatchMaker> maker_;
  int64_t next_;
  int64_t end_;
};

/// Returns the current device of the calling thread if it is not the first device. A new thread
/// uses the first one by default.
std::optional<c10::Device> chosen_device() {
  if (at::accelerator::deviceCount() == 0) return std::nullopt;
  const auto type = *at::accelerator::getAccelerator();
  const c10::Device device = c10::impl::VirtualGuardImpl(type).getDevice();
  return device.index() > 0 ? std::optional(device) : std::nullopt;
}

/// The state that the reader and the workers share. Workers share ownership of it, so that a
/// hanging worker can be abandoned.
struct PrefetchState {
  using Slot = std::variant<std::monostate, Batch, std::exception_ptr>;

  Slot& slot_of(int64_t batch_index) { return slots[batch_index % slots.size()]; }

  /// @param own  The first batch of this worker if it makes every n-th batch.
  /// @param failure  The exception from the worker's initialisation; null if there is none.
  void work(BatchMaker& maker, int64_t own, const std::stop_token& stop,
            std::exception_ptr failure) {
    while (true) {
      std::unique_lock in_order(reading, std::defer_lock);
      if (reads_in_order) in_order.lock();
      std::unique_lock lock(mutex);
      const int64_t index = stride > 0 ? own : next_to_claim;
      if (stop.stop_requested() || index >= end) return;
      own += stride;
      ++next_to_claim;
      const auto in_reach = [&] {
        return index >= end || index < next_to_read + static_cast<int64_t>(slots.size());
      };
      if (!taken.wait(lock, stop, in_reach) || index >= end) return;
      lock.unlock();
      Slot result;
      try {
        if (failure) std::rethrow_exception(failure);
        const bool is_there = !reads_in_order || maker.read(index);
        if (reads_in_order) in_order.unlock();
        if (is_there) result = maker.make(index);
      } catch (...) {
        result = std::current_exception();
      }
      lock.lock();
      if (std::holds_alternative<std::monostate>(result)) {
        end = std::min(end, index);  // the data ends here
      } else {
        slot_of(index) = std::move(result);
      }
      lock.unlock();
      made.notify_one();
    }
  }

  int64_t stride = 0;  // 0: workers claim the next batch
  bool reads_in_order = false;
  std::mutex reading;  // held from the claim of a batch until it is read; locked before `mutex`
  std::mutex mutex;    // guards the members below
  std::condition_variable made;
  std::condition_variable_any taken;
  std::vector<Slot> slots;
  int64_t next_to_claim = 0;
  int64_t next_to_read = 0;
  int64_t end = 0;
  int64_t num_running = 0;  // workers
};

/// Worker threads make batches and put them into a ring of slots. The reader empties one slot after
/// another, so that batches arrive in epoch order, regardless of which worker is faster. To limit
/// the number of batches in memory, a worker waits while its batch is more than a ring ahead of the
/// reader.
///
/// Workers that share the data claim the next batch when they are free. Workers that make every
/// n-th batch may have a state: see BatchWork::is_striped.
class PrefetchIterator final : public BatchIterator {
 public:
  PrefetchIterator(BatchWork work, const DataLoaderOptions& options, int64_t epoch, int64_t first,
                   int64_t end)
      : on_end_(std::move(work.on_end)),
        timeout_(*options.timeout),
        epoch_(epoch),
        is_striped_(work.is_striped) {
    const auto num_workers = static_cast<int64_t>(work.makers.size());
    state_->slots.resize(num_workers * *options.prefetch_factor);
    state_->stride = work.is_striped ? num_workers : 0;
    state_->reads_in_order = work.reads_in_order;
    state_->next_to_claim = state_->next_to_read = first;
    state_->end = end;
    state_->num_running = num_workers;
    for (int64_t i = 0; i < num_workers; ++i) {
      workers_.emplace_back([state = state_, i, own = first + i, device = chosen_device(),
                             init = options.worker_init_fn,
                             maker = std::move(work.makers[i])](const std::stop_token& stop) {
        std::exception_ptr failure;
        try {
          if (device) c10::impl::VirtualGuardImpl(device->type()).setDevice(*device);
          if (init) init(i);
        } catch (...) {
          failure = std::current_exception();
        }
        state->work(*maker, own, stop, failure);
        const std::lock_guard lock(state->mutex);
        --state->num_running;
        state->made.notify_one();
      });
    }
  }

  ~PrefetchIterator() override {
    if (has_timed_out_) {
      leave_behind();
      return;
    }
    if (is_striped_) {
      const std::lock_guard lock(state_->mutex);
      state_->end =
          std::min(state_->end, state_->next_to_read + static_cast<int64_t>(state_->slots.size()));
      state_->taken.notify_all();
    } else {
      for (auto& worker : workers_) worker.request_stop();
    }
    if (!have_ended()) {
      TORCH_WARN("A worker thread of a loader has not ended within ", timeout_,
                 " s (timeout) after the loop left epoch ", epoch_,
                 ". It is abandoned, and ends with the process at the latest.");
      leave_behind();
      return;
    }
    for (auto& worker : workers_) worker.join();
    if (on_end_) on_end_();
  }

  std::optional<Batch> next() override {
    std::unique_lock lock(state_->mutex);
    const auto is_ready = [&] {
      return state_->next_to_read >= state_->end ||
             !std::holds_alternative<std::monostate>(state_->slot_of(state_->next_to_read));
    };
    wait(lock, is_ready);
    if (state_->next_to_read >= state_->end) return std::nullopt;
    PrefetchState::Slot taken =
        std::exchange(state_->slot_of(state_->next_to_read), std::monostate());
    auto* failure = std::get_if<std::exception_ptr>(&taken);
    if (failure) state_->end = state_->next_to_read;
    ++state_->next_to_read;
    lock.unlock();
    state_->taken.notify_all();
    if (failure) std::rethrow_exception(*failure);
    return std::get<Batch>(std::move(taken));
  }

 private:
  /// Returns the timeout, limited because the clock cannot represent more than a few hundred years.
  std::chrono::duration<double> longest_wait() const {
    return std::chrono::duration<double>(std::min(timeout_, 1e9));
  }

  /// Waits for the workers until the timeout. Returns whether they have ended.
  bool have_ended() {
    if (timeout_ == 0.0) return true;
    std::unique_lock lock(state_->mutex);
    return state_->made.wait_for(lock, longest_wait(), [&] { return state_->num_running == 0; });
  }

  void wait(std::unique_lock<std::mutex>& lock, const auto& is_ready) {
    if (timeout_ == 0.0) return state_->made.wait(lock, is_ready);
    if (!has_timed_out_ && state_->made.wait_for(lock, longest_wait(), is_ready)) return;
    has_timed_out_ = true;
    throw Error(
        c10::str("the worker threads have not produced batch ", state_->next_to_read, " of epoch ",
                 epoch_, " within ", timeout_,
                 " s (timeout). If the data is slow, raise timeout or num_workers; if the dataset, "
                 "the collate_fn or the transform hangs, set num_workers = 0 and look at the stack "
                 "of the main thread in a debugger. timeout = 0 waits indefinitely."));
  }

  /// Abandons the workers. A hanging thread cannot be stopped; it ends when its work returns, or
  /// with the process.
  void leave_behind() {
    for (auto& worker : workers_) {
      worker.request_stop();
      worker.detach();
    }
  }

  const std::shared_ptr<PrefetchState> state_ = std::make_shared<PrefetchState>();
  const std::function<void()> on_end_;
  const double timeout_;
  const int64_t epoch_;
  const bool is_striped_;
  bool has_timed_out_ = false;
  std::vector<std::jthread> workers_;
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

int64_t num_makers_for(const DataLoaderOptions& options, int64_t num_batches) {
  return std::max<int64_t>(std::min(*options.num_workers, num_batches), 1);
}

std::unique_ptr<BatchIterator> make_batches(BatchWork work, const DataLoaderOptions& options,
                                            int64_t epoch, int64_t first, int64_t end) {
  if (*options.num_workers == 0) {
    return std::make_unique<InlineIterator>(std::move(work.makers[0]), first, end);
  }
  return std::make_unique<PrefetchIterator>(std::move(work), options, epoch, first, end);
}

}  // namespace linkboy
