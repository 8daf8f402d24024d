#include <algorithm>
#include <condition_variable>
#include <exception>
#include <mutex>
#include <thread>
#include <variant>
#include <vector>

#include "data/batch_maker.hpp"

namespace linkboy {
namespace {

/// Worker threads claim batches by number and put them into a ring of slots; the reader takes slot
/// after slot, so the order is that of the epoch whoever is faster. A worker waits while its batch
/// would be more than a ring ahead of the reader: the number of batches in memory is bounded.
class PrefetchIterator final : public BatchIterator {
 public:
  PrefetchIterator(const Dataset& dataset, const DataLoaderOptions& options, int64_t epoch,
                   int64_t first, int64_t end)
      : next_to_claim_(first), next_to_read_(first), end_(end) {
    const int64_t num_workers = std::min(*options.num_workers, std::max<int64_t>(end - first, 1));
    slots_.resize(num_workers * *options.prefetch_factor);
    for (int64_t i = 0; i < num_workers; ++i) {
      workers_.emplace_back([this, maker = BatchMaker(dataset.for_worker(), options, epoch)](
                                std::stop_token stop) { work(maker, stop); });
    }
  }

  ~PrefetchIterator() override {
    for (auto& worker : workers_) worker.request_stop();
  }  // the threads are joined as workers_ goes

  std::optional<Batch> next() override {
    if (next_to_read_ >= end_) return std::nullopt;
    std::unique_lock lock(mutex_);
    auto& slot = slot_of(next_to_read_);
    made_.wait(lock, [&] { return !std::holds_alternative<std::monostate>(slot); });
    Slot taken = std::exchange(slot, std::monostate());
    auto* failure = std::get_if<std::exception_ptr>(&taken);
    next_to_read_ = failure ? end_ : next_to_read_ + 1;
    if (failure) next_to_claim_ = end_;
    lock.unlock();
    taken_.notify_all();
    if (failure) std::rethrow_exception(*failure);
    return std::get<Batch>(std::move(taken));
  }

 private:
  using Slot = std::variant<std::monostate, Batch, std::exception_ptr>;

  Slot& slot_of(int64_t batch_index) { return slots_[batch_index % slots_.size()]; }

  void work(const BatchMaker& maker, const std::stop_token& stop) {
    while (true) {
      std::unique_lock lock(mutex_);
      if (stop.stop_requested() || next_to_claim_ >= end_) return;
      const int64_t index = next_to_claim_++;
      const auto in_reach = [&] {
        return index < next_to_read_ + static_cast<int64_t>(slots_.size());
      };
      if (!taken_.wait(lock, stop, in_reach)) return;
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

  std::mutex mutex_;  // guards slots_, next_to_claim_ and next_to_read_
  std::condition_variable made_;
  std::condition_variable_any taken_;
  std::vector<Slot> slots_;
  int64_t next_to_claim_;
  int64_t next_to_read_;
  const int64_t end_;
  std::vector<std::jthread> workers_;  // last: joined before the rest goes
};

}  // namespace

std::unique_ptr<BatchIterator> prefetch(const Dataset& dataset, const DataLoaderOptions& options,
                                        int64_t epoch, int64_t first, int64_t end) {
  return std::make_unique<PrefetchIterator>(dataset, options, epoch, first, end);
}

}  // namespace linkboy
