// Memory of the devices, and page-locked memory of the host.

#include <ATen/core/CachingHostAllocator.h>
#include <c10/core/CachingDeviceAllocator.h>
#include <c10/core/DeviceGuard.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <utility>
#include <vector>

#include "simulated_device/interface.hpp"

namespace linkboy::simulated_device {
namespace {

using c10::CachingDeviceAllocator::DeviceStats;

/// Keeps freed blocks, like LibTorch's allocators for other devices. Does not split blocks, because
/// training requests the same sizes in each update.
class DeviceAllocator final : public c10::DeviceAllocator {
 public:
  DeviceAllocator() : stats_(static_cast<std::size_t>(machine().num_devices())) {}

  c10::DataPtr allocate(std::size_t size) override {
    const c10::DeviceIndex device = current_device();
    const c10::Device place(kType, device);
    if (size == 0) return {nullptr, nullptr, &free_block, place};
    const std::lock_guard lock(mutex_);
    Block block{.size = (size + kAlignment - 1) / kAlignment * kAlignment,
                .stream = &stream_of(current_stream_of(device)),
                .others = {}};
    void* pointer = allocate(block);
    stats_of(device).allocation[0].increase(1);
    stats_of(device).allocated_bytes[0].increase(block.size);
    used_.emplace(pointer, std::move(block));
    return {pointer, pointer, &free_block, place};
  }

  void free(void* pointer) {
    const std::lock_guard lock(mutex_);
    Block block = std::move(used_.extract(pointer).mapped());
    DeviceStats& stats = stats_of(block.stream->device);
    stats.allocation[0].decrease(1);
    stats.allocated_bytes[0].decrease(block.size);
    std::vector<std::shared_ptr<Event>> uses;
    for (Stream* other : block.others) uses.push_back(record_event(*other));
    block.others.clear();
    if (uses.empty()) {
      keep(pointer, block);
    } else {
      in_use_elsewhere_.push_back({pointer, std::move(block), std::move(uses)});
    }
  }

  void recordStream(const c10::DataPtr& memory, c10::Stream stream) override {
    const std::lock_guard lock(mutex_);
    const auto found = used_.find(memory.get());
    if (found == used_.end()) return;
    auto& [size, own, others] = found->second;
    Stream* used_on = &stream_of(stream);
    if (used_on != own && std::find(others.begin(), others.end(), used_on) == others.end()) {
      others.push_back(used_on);
    }
  }

  void copy_data(void* target, const void* source, std::size_t size) const override {
    machine().count(&Counts::device_to_device);
    machine().launch(stream_of(current_stream_of(current_device())),
                     {.name = "a copy of a storage",
                      .reads = {{source, size}},
                      .writes = {{target, size}},
                      .run = [to = machine().bytes_of(target), from = machine().bytes_of(source),
                              size] { std::memcpy(to, from, size); }});
  }

  bool initialized() override { return true; }
  void emptyCache(c10::MempoolId_t) override {
    const std::lock_guard lock(mutex_);
    for (int i = 0; i < machine().num_devices(); ++i) empty_cache(i);
  }
  DeviceStats getDeviceStats(c10::DeviceIndex device) override {
    const std::lock_guard lock(mutex_);
    return stats_of(device);
  }
  void resetAccumulatedStats(c10::DeviceIndex device) override {
    const std::lock_guard lock(mutex_);
    for (auto* stat : stats_in_use(device)) stat->reset_accumulated();
  }
  void resetPeakStats(c10::DeviceIndex device) override {
    const std::lock_guard lock(mutex_);
    for (auto* stat : stats_in_use(device)) stat->reset_peak();
  }
  std::pair<std::size_t, std::size_t> getMemoryInfo(c10::DeviceIndex device) override {
    return {machine().memory(device).num_free(), machine().memory(device).capacity()};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &free_block; }

 private:
  static constexpr std::size_t kAlignment = 512;

  struct Block {
    std::size_t size;
    Stream* stream;               // for which it was allocated
    std::vector<Stream*> others;  // added by record_stream
  };
  struct FreedBlock {
    void* pointer;
    Block block;
    std::vector<std::shared_ptr<Event>> uses;
  };

  static void free_block(void* pointer);

  DeviceStats& stats_of(int device) { return stats_.at(static_cast<std::size_t>(device)); }
  std::vector<c10::CachingAllocator::Stat*> stats_in_use(int device) {
    DeviceStats& stats = stats_of(device);
    return {&stats.allocation[0], &stats.allocated_bytes[0], &stats.reserved_bytes[0]};
  }

  void* allocate(const Block& block) {
    const int device = block.stream->device;
    keep_those_no_longer_used();
    if (void* pointer = take_kept(block)) return pointer;
    void* pointer = machine().memory(device).allocate(block.size);
    if (pointer == nullptr) {
      ++stats_of(device).num_alloc_retries;
      empty_cache(device);
      pointer = machine().memory(device).allocate(block.size);
    }
    if (pointer == nullptr) {
      ++stats_of(device).num_ooms;
      TORCH_CHECK_WITH(OutOfMemoryError, false, "the simulated device ", device,
                       " is out of memory: ", block.size, " bytes were asked for, ",
                       machine().memory(device).num_free(), " are free");
    }
    stats_of(device).reserved_bytes[0].increase(block.size);
    return pointer;
  }

  void* take_kept(const Block& block) {
    const auto found = kept_.find({block.stream, block.size});
    if (found == kept_.end()) return nullptr;
    void* pointer = found->second;
    kept_.erase(found);
    return pointer;
  }

  void keep(void* pointer, const Block& block) {
    kept_.emplace(std::pair(block.stream, block.size), pointer);
  }

  void keep_those_no_longer_used() {
    std::erase_if(in_use_elsewhere_, [&](const FreedBlock& freed) {
      const bool is_used = std::any_of(freed.uses.begin(), freed.uses.end(), [](const auto& use) {
        return machine().query(*use) == Status::not_ready;
      });
      if (!is_used) keep(freed.pointer, freed.block);
      return !is_used;
    });
  }

  void empty_cache(int device) {
    machine().wait_for_device(device);
    keep_those_no_longer_used();
    std::erase_if(kept_, [&](const auto& entry) {
      const auto& [stream, size] = entry.first;
      if (stream->device != device) return false;
      machine().release(device, entry.second);
      stats_of(device).reserved_bytes[0].decrease(size);
      return true;
    });
  }

  std::mutex mutex_;
  std::map<void*, Block> used_;
  std::vector<FreedBlock> in_use_elsewhere_;
  std::multimap<std::pair<Stream*, std::size_t>, void*> kept_;
  std::vector<DeviceStats> stats_;
};

DeviceAllocator& allocator() {
  static auto* made = new DeviceAllocator;  // tensors may be freed until the process ends
  return *made;
}

void DeviceAllocator::free_block(void* pointer) {
  if (pointer != nullptr) allocator().free(pointer);
}

class PageLockedMemory : public at::CachingHostAllocatorImpl<c10::Stream, std::shared_ptr<Event>> {
  void allocate_host_memory(std::size_t size, void** pointer) override {
    constexpr std::size_t kPage = 4096;
    *pointer = std::aligned_alloc(kPage, (size + kPage - 1) / kPage * kPage);
    TORCH_CHECK(*pointer != nullptr, "no page-locked memory");
    machine().lock_pages(*pointer, size);
  }
  void free_block(at::HostBlock<c10::Stream>* block) override {
    for (int i = 0; i < machine().num_devices(); ++i) machine().wait_for_device(i);
    machine().unlock_pages(block->ptr_);
    std::free(block->ptr_);
  }
  void record_stream(std::optional<std::vector<std::shared_ptr<Event>>>& events,
                     c10::Stream stream) override {
    events->push_back(simulated_device::record_event(stream_of(stream)));
  }
  bool query_event(std::shared_ptr<Event>& event) override {
    return machine().query(*event) != Status::not_ready;
  }
};

void free_page_locked(void* block);
using PageLockedAllocator = at::CachingHostAllocatorInterface<PageLockedMemory, free_page_locked>;

PageLockedAllocator& page_locked_allocator() {
  static auto* made = new PageLockedAllocator;
  return *made;
}

void free_page_locked(void* block) { page_locked_allocator().free(block); }

}  // namespace

c10::Allocator& device_allocator() { return allocator(); }

void record_stream(const c10::DataPtr& memory, c10::Stream stream) {
  allocator().recordStream(memory, stream);
}

void resize_storage(c10::StorageImpl& storage, std::size_t size) {
  const c10::DeviceGuard on_device(storage.device());
  c10::DataPtr memory = allocator().allocate(size);
  if (const std::size_t kept = std::min(size, storage.nbytes()); kept > 0) {
    allocator().copy_data(memory.get(), storage.data(), kept);
  }
  storage.set_data_ptr_noswap(std::move(memory));
  storage.set_nbytes(size);
}

void record_page_locked(const c10::Storage& storage, c10::Stream stream) {
  page_locked_allocator().record_event(const_cast<void*>(storage.data()),
                                       storage.data_ptr().get_context(), stream);
}

void register_allocators() {
  c10::SetAllocator(kType, &allocator());
  at::setHostAllocator(kType, &page_locked_allocator());
}

}  // namespace linkboy::simulated_device
