// A machine with simulated accelerators: memory, streams, events, page-locked memory, captured
// graphs. It depends on neither CUDA's interface nor LibTorch.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "access_history.hpp"
#include "device_memory.hpp"
#include "simulation.hpp"
#include "stream.hpp"

namespace linkboy::simulated_cuda {

/// Work of a stream. If it is part of a graph, it may run several times.
struct Work {
  std::string name;
  std::vector<Range> reads;  // device memory and page-locked memory
  std::vector<Range> writes;
  std::function<void()> run;
};

/// The numbers are those of CUDA's errors.
enum class Status {
  ok = 0,
  illegal_state = 401,
  not_ready = 600,
  kernel_failed = 710,
  capture_unsupported = 900,  // the host must not wait during a capture
  capture_invalidated = 901,
  capture_merges = 902,
  capture_unmatched = 903,
  capture_unjoined = 904,
  capture_isolation = 905,  // depends on work outside the capture
  captured_event = 907,
  capture_wrong_thread = 908
};

enum class CaptureMode { global, one_thread, relaxed };

struct Graph {
  std::vector<Work> nodes;  // in an order that respects their dependencies
};

/// A graph that is being recorded, from one stream and those that join it.
struct Capture {
  std::uint64_t id;
  Stream* origin;
  std::thread::id thread;
  CaptureMode mode;
  bool is_invalid = false;
  bool is_ended = false;
  Graph graph{};
  std::map<Stream*, Clock> clocks{};  // of the streams in the capture
  AccessHistory history{};
};

/// A position in the work of a stream or of a capture.
struct Event {
  Stream* stream = nullptr;  // null if the event was not recorded yet
  std::uint64_t position = 0;
  Clock clock{};
  std::shared_ptr<Capture> capture{};
};

/// The machine. Any thread may call its functions. Accesses are compared for races in the order of
/// these calls.
class Machine {
 public:
  static Machine& instance();

  int num_devices() const { return static_cast<int>(devices_.size()); }
  DeviceMemory& memory(int device) { return *devices_[device].memory; }
  /// Creates the process's context on the device, as the first use of a real device does.
  void use(int device);
  bool is_used(int device) const;
  /// Returns the device whose memory contains `pointer`, if any.
  std::optional<int> device_of(const void* pointer) const;
  /// Returns the address at which the host can access the bytes of a pointer of any kind.
  void* bytes_of(const void* pointer) const;
  /// Frees memory after all work of its device. Returns whether it was a block of that device.
  bool release(int device, void* pointer);

  void lock_pages(const void* pointer, std::size_t size);
  void unlock_pages(const void* pointer);
  bool is_page_locked(const void* pointer) const;

  Stream& default_stream(int device) { return *devices_[device].streams.front(); }
  Stream& make_stream(int device);

  void launch(Stream& stream, Work work);
  void launch(Stream& stream, const std::shared_ptr<const Graph>& graph);
  /// Whether another stream of the device has work for which neither the host nor this stream has
  /// waited. If so, work that is launched now runs at the same time.
  bool has_work_beside(Stream& stream);
  Status record(Event& event, Stream& stream);
  Status make_wait(Stream& stream, const Event& event);

  // The host waits, or checks whether it would have to.
  Status wait(Stream& stream);
  Status wait(const Event& event);
  Status wait_for_device(int device);
  Status query(Stream& stream);
  Status query(const Event& event);

  /// Returns whether this thread may make a call that could wait. If not, the captures that forbid
  /// it become invalid.
  Status may_wait();
  CaptureMode exchange_mode(CaptureMode mode);
  Status begin_capture(Stream& stream, CaptureMode mode);
  Status end_capture(Stream& stream, Graph& graph);
  /// Returns the capture of a stream, or null if the stream is not part of one.
  std::shared_ptr<Capture> capture_of(Stream& stream) const;
  /// If the stream is part of a capture, makes the capture invalid and returns capture_unsupported.
  Status refuse_in_capture(Stream& stream);

  /// Reports that a kernel failed. As on a real device, all later waits fail.
  void fail(const std::string& why);
  void forget_failure();
  void count(std::int64_t Counts::*what);
  Counts counts() const;
  void tolerate_races(bool on);
  std::string take_race_reports();

 private:
  struct Device {
    std::unique_ptr<DeviceMemory> memory;
    bool is_used = false;
    std::vector<Stream*> streams{};  // never destroyed, because their threads use them
  };

  Machine();
  void wait_at_exit();

  // The caller of these functions must hold mutex_.
  void check(const Work& work, const Stream& stream, Clock& clock, AccessHistory& history);
  void poison_page_locked(const Work& work);
  bool is_page_locked(std::uintptr_t address) const;
  std::shared_ptr<Capture> find_capture(Stream& stream) const;
  std::vector<Stream*> streams_of(int device) const;
  Clock& clock_of(const Stream& stream) { return clocks_[static_cast<std::size_t>(stream.id)]; }
  void report_race(const std::string& description);

  Status wait_for_all_of(Stream& stream);
  Status wait_until(Stream& stream, std::uint64_t position, const Clock& clock);
  void run(const Work& work);

  std::vector<Device> devices_;
  mutable std::mutex mutex_;   // guards the streams in devices_ and the following members
  std::vector<Clock> clocks_;  // of each stream
  Clock host_clock_;           // of all threads, whose waits for each other are not tracked
  AccessHistory history_;
  std::map<std::uintptr_t, std::size_t> page_locked_;  // sizes by address
  std::map<Stream*, std::shared_ptr<Capture>> captures_;
  std::uint64_t num_captures_ = 0;
  Counts counts_;
  bool has_failed_ = false;
  bool tolerates_races_ = false;
  std::string race_reports_;
};

}  // namespace linkboy::simulated_cuda
