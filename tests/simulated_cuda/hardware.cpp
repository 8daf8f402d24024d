#include "hardware.hpp"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <iterator>
#include <utility>

#include "settings.hpp"

namespace linkboy::simulated_cuda {
namespace {

constexpr int kPoison = 0xff;
constexpr std::chrono::seconds kLimitAtExit{2};

}  // namespace

Machine& Machine::instance() {
  static auto* machine = new Machine;  // streams may run work until the process ends
  return *machine;
}

Machine::Machine() {
  for (int i = 0; i < static_cast<int>(settings().devices.size()); ++i) {
    devices_.push_back({.memory = std::make_unique<DeviceMemory>(settings().memory)});
    make_stream(i);
  }
  std::atexit([] { instance().wait_at_exit(); });
}

/// Waits for all work, because no kernel may run while LibTorch's variables are being destroyed.
void Machine::wait_at_exit() {
  for (int i = 0; i < num_devices(); ++i) {
    for (Stream* stream : streams_of(i)) stream->wait(stream->last_position(), kLimitAtExit);
  }
}

void Machine::use(int device) {
  const std::lock_guard lock(mutex_);
  devices_[device].is_used = true;
}

bool Machine::is_used(int device) const {
  const std::lock_guard lock(mutex_);
  return devices_[device].is_used;
}

std::optional<int> Machine::device_of(const void* pointer) const {
  for (int i = 0; i < num_devices(); ++i) {
    if (devices_[i].memory->owns(pointer)) return i;
  }
  return std::nullopt;
}

void* Machine::bytes_of(const void* pointer) const {
  const auto device = device_of(pointer);
  return device ? devices_[*device].memory->bytes_of(pointer) : const_cast<void*>(pointer);
}

bool Machine::release(int device, void* pointer) {
  wait_for_device(device);
  const std::lock_guard lock(mutex_);
  const std::size_t size = memory(device).release(pointer);
  history_.forget({pointer, size});
  return size > 0;
}

void Machine::lock_pages(const void* pointer, std::size_t size) {
  const std::lock_guard lock(mutex_);
  page_locked_[Range(pointer, size).begin] = size;
}

void Machine::unlock_pages(const void* pointer) {
  const std::lock_guard lock(mutex_);
  const auto block = page_locked_.find(Range(pointer, 0).begin);
  if (block == page_locked_.end()) return;
  history_.forget({pointer, block->second});
  page_locked_.erase(block);
}

bool Machine::is_page_locked(const void* pointer) const {
  const std::lock_guard lock(mutex_);
  return is_page_locked(Range(pointer, 0).begin);
}

bool Machine::is_page_locked(std::uintptr_t address) const {
  const auto after = page_locked_.upper_bound(address);
  if (after == page_locked_.begin()) return false;
  const auto& [begin, size] = *std::prev(after);
  return address < begin + size;
}

Stream& Machine::make_stream(int device) {
  const std::lock_guard lock(mutex_);
  auto* stream = new Stream(static_cast<int>(clocks_.size()), device);
  clocks_.emplace_back();
  devices_[device].streams.push_back(stream);
  return *stream;
}

std::vector<Stream*> Machine::streams_of(int device) const { return devices_[device].streams; }

void Machine::launch(Stream& stream, Work work) {
  const std::lock_guard lock(mutex_);
  if (const auto capture = find_capture(stream)) {
    check(work, stream, capture->clocks[&stream], capture->history);
    capture->graph.nodes.push_back(std::move(work));
    return;
  }
  clock_of(stream).join(host_clock_);
  poison_page_locked(work);
  check(work, stream, clock_of(stream), history_);
  stream.push([this, work = std::move(work)] { run(work); });
}

void Machine::launch(Stream& stream, const std::shared_ptr<const Graph>& graph) {
  const std::lock_guard lock(mutex_);
  ++counts_.graphs;
  clock_of(stream).join(host_clock_);
  for (const Work& node : graph->nodes) {
    poison_page_locked(node);
    check(node, stream, clock_of(stream), history_);
  }
  stream.push([this, graph] {
    for (const Work& node : graph->nodes) run(node);
  });
}

void Machine::run(const Work& work) {
  try {
    work.run();
  } catch (const std::exception& error) {
    fail(work.name + ": " + error.what());
  }
}

/// Compares the work with all earlier work, and adds it to `clock`.
void Machine::check(const Work& work, const Stream& stream, Clock& clock, AccessHistory& history) {
  const Access access{
      .stream = stream.id,
      .time = clock.advance(stream.id),
      .work = std::make_shared<const std::string>(work.name + " on " + stream.name())};
  const auto check_allocation = [&](Range range) {
    const void* pointer = reinterpret_cast<const void*>(range.begin);
    if (const auto device = device_of(pointer)) {
      if (!memory(*device).is_allocated(range)) {
        report_race(*access.work + " uses memory that is not allocated");
      }
    }
  };
  for (const Range range : work.reads) {
    check_allocation(range);
    if (const auto conflict = history.add_read(range, access, clock)) report_race(*conflict);
  }
  for (const Range range : work.writes) {
    check_allocation(range);
    if (const auto conflict = history.add_write(range, access, clock)) report_race(*conflict);
  }
}

/// Overwrites the memory that the host must not read before the work is done.
void Machine::poison_page_locked(const Work& work) {
  for (const Range range : work.writes) {
    // Earlier work that still has to read the memory must find the host's data there.
    if (is_page_locked(range.begin) && history_.is_settled(range, host_clock_)) {
      std::memset(reinterpret_cast<void*>(range.begin), kPoison, range.end - range.begin);
    }
  }
}

bool Machine::has_work_beside(Stream& stream) {
  const std::lock_guard lock(mutex_);
  clock_of(stream).join(host_clock_);
  const auto streams = streams_of(stream.device);
  return std::any_of(streams.begin(), streams.end(), [&](const Stream* other) {
    return !clock_of(stream).has_seen(other->id, clock_of(*other).at(other->id));
  });
}

Status Machine::record(Event& event, Stream& stream) {
  const std::lock_guard lock(mutex_);
  event.stream = &stream;
  event.capture = find_capture(stream);
  if (event.capture) {
    event.clock = event.capture->clocks[&stream];
    return Status::ok;
  }
  clock_of(stream).join(host_clock_);
  event.clock = clock_of(stream);
  event.position = stream.push([] {});
  return Status::ok;
}

Status Machine::make_wait(Stream& stream, const Event& event) {
  const std::lock_guard lock(mutex_);
  if (event.stream == nullptr) return Status::ok;
  const auto capture = find_capture(stream);
  if (event.capture) {
    if (event.capture->is_ended) return Status::captured_event;
    if (capture && capture != event.capture) {
      capture->is_invalid = event.capture->is_invalid = true;
      return Status::capture_merges;
    }
    captures_[&stream] = event.capture;
    event.capture->clocks[&stream].join(event.clock);
    return Status::ok;
  }
  if (capture) {
    capture->is_invalid = true;
    return Status::capture_isolation;
  }
  clock_of(stream).join(host_clock_);
  clock_of(stream).join(event.clock);
  if (event.stream != &stream) {
    stream.push([other = event.stream, position = event.position] { other->wait(position); });
  }
  return Status::ok;
}

Status Machine::wait(Stream& stream) {
  if (const Status status = refuse_in_capture(stream); status != Status::ok) return status;
  if (const Status status = may_wait(); status != Status::ok) return status;
  count(&Counts::stream_waits);
  return wait_for_all_of(stream);
}

Status Machine::wait(const Event& event) {
  if (event.capture) return Status::captured_event;
  if (const Status status = may_wait(); status != Status::ok) return status;
  count(&Counts::event_waits);
  if (event.stream == nullptr) return Status::ok;
  if (event.position == event.stream->last_position()) count(&Counts::draining_event_waits);
  return wait_until(*event.stream, event.position, event.clock);
}

Status Machine::wait_for_device(int device) {
  if (const Status status = may_wait(); status != Status::ok) return status;
  std::unique_lock lock(mutex_);
  const auto streams = streams_of(device);
  lock.unlock();
  Status status = Status::ok;
  for (Stream* stream : streams) status = wait_for_all_of(*stream);
  return status;
}

Status Machine::wait_for_all_of(Stream& stream) {
  std::unique_lock lock(mutex_);
  const std::uint64_t position = stream.last_position();
  const Clock clock = clock_of(stream);
  lock.unlock();
  return wait_until(stream, position, clock);
}

Status Machine::wait_until(Stream& stream, std::uint64_t position, const Clock& clock) {
  stream.wait(position);
  const std::lock_guard lock(mutex_);
  host_clock_.join(clock);
  return has_failed_ ? Status::kernel_failed : Status::ok;
}

Status Machine::query(Stream& stream) {
  if (const Status status = refuse_in_capture(stream); status != Status::ok) return status;
  if (const Status status = may_wait(); status != Status::ok) return status;
  const std::lock_guard lock(mutex_);
  if (has_failed_) return Status::kernel_failed;
  if (!stream.is_done(stream.last_position())) return Status::not_ready;
  host_clock_.join(clock_of(stream));
  return Status::ok;
}

Status Machine::query(const Event& event) {
  if (event.capture) return Status::captured_event;
  if (const Status status = may_wait(); status != Status::ok) return status;
  const std::lock_guard lock(mutex_);
  if (has_failed_) return Status::kernel_failed;
  if (event.stream == nullptr) return Status::ok;
  if (!event.stream->is_done(event.position)) return Status::not_ready;
  host_clock_.join(event.clock);
  return Status::ok;
}

void Machine::fail(const std::string& why) {
  std::fprintf(stderr, "simulated device: a kernel failed: %s\n", why.c_str());
  const std::lock_guard lock(mutex_);
  has_failed_ = true;
}

void Machine::forget_failure() {
  const std::lock_guard lock(mutex_);
  has_failed_ = false;
}

void Machine::report_race(const std::string& description) {
  ++counts_.races;
  race_reports_ += description + '\n';
  if (tolerates_races_) return;
  std::fprintf(stderr, "simulated device: race: %s\n", description.c_str());
  if (settings().is_strict) std::abort();
}

void Machine::count(std::int64_t Counts::*what) {
  const std::lock_guard lock(mutex_);
  ++(counts_.*what);
}

Counts Machine::counts() const {
  const std::lock_guard lock(mutex_);
  return counts_;
}

void Machine::tolerate_races(bool on) {
  const std::lock_guard lock(mutex_);
  tolerates_races_ = on;
  race_reports_.clear();
}

std::string Machine::take_race_reports() {
  const std::lock_guard lock(mutex_);
  return std::exchange(race_reports_, {});
}

}  // namespace linkboy::simulated_cuda
