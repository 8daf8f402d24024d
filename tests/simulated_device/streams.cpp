// Devices, streams and events, for LibTorch's guards, c10::Event and at::accelerator.

#include <c10/core/DeviceGuard.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <c10/util/Exception.h>

#include <atomic>
#include <map>
#include <utility>
#include <vector>

#include "simulated_cuda/host_call.hpp"
#include "simulated_device/interface.hpp"

namespace linkboy::simulated_device {
namespace {

constexpr std::size_t kNumPooledStreams = 8;  // per device

thread_local c10::DeviceIndex device_of_thread = 0;
thread_local std::map<c10::DeviceIndex, c10::StreamId> streams_of_thread;

/// Returns LibTorch's handle of a stream: 0 for the default stream, otherwise the stream's address.
c10::Stream handle_of(Stream& stream) {
  const auto device = static_cast<c10::DeviceIndex>(stream.device);
  const bool is_default = &stream == &machine().default_stream(stream.device);
  return c10::Stream(c10::Stream::UNSAFE, c10::Device(kType, device),
                     is_default ? 0 : reinterpret_cast<c10::StreamId>(&stream));
}

Stream& pooled_stream(c10::DeviceIndex device) {
  static const auto pools = [] {
    std::vector<std::vector<Stream*>> made(static_cast<std::size_t>(machine().num_devices()));
    for (int i = 0; i < machine().num_devices(); ++i) {
      for (std::size_t k = 0; k < kNumPooledStreams; ++k) {
        made[static_cast<std::size_t>(i)].push_back(&machine().make_stream(i));
      }
    }
    return made;
  }();
  static std::atomic<std::size_t> next = 0;
  return *pools.at(static_cast<std::size_t>(device))[next++ % kNumPooledStreams];
}

class Guard final : public c10::impl::DeviceGuardImplInterface {
 public:
  c10::DeviceType type() const override { return kType; }
  c10::DeviceIndex deviceCount() const noexcept override {
    return static_cast<c10::DeviceIndex>(machine().num_devices());
  }
  c10::Device getDevice() const override { return {kType, device_of_thread}; }
  void setDevice(c10::Device device) const override {
    TORCH_CHECK(device.index() < deviceCount(), "there is no device ", device, " here");
    uncheckedSetDevice(device);
  }
  void uncheckedSetDevice(c10::Device device) const noexcept override {
    if (device.has_index()) device_of_thread = device.index();
  }
  c10::Device exchangeDevice(c10::Device device) const override {
    const c10::Device previous = getDevice();
    setDevice(device);
    return previous;
  }

  c10::Stream getStream(c10::Device device) const override {
    return current_stream_of(with_index(device).index());
  }
  c10::Stream getDefaultStream(c10::Device device) const override {
    return c10::Stream(c10::Stream::DEFAULT, with_index(device));
  }
  c10::Stream getStreamFromGlobalPool(c10::Device device, bool) const override {
    return handle_of(pooled_stream(with_index(device).index()));
  }
  c10::Stream getNewStream(c10::Device device, int) const override {
    return handle_of(machine().make_stream(with_index(device).index()));
  }
  c10::Stream exchangeStream(c10::Stream stream) const override {
    const c10::Stream previous = current_stream_of(stream.device_index());
    streams_of_thread[stream.device_index()] = stream.id();
    return previous;
  }
  bool queryStream(const c10::Stream& stream) const override {
    return is_done(machine().query(stream_of(stream)));
  }
  void synchronizeStream(const c10::Stream& stream) const override {
    check(machine().wait(stream_of(stream)));
  }
  void synchronizeDevice(c10::DeviceIndex device) const override {
    machine().count(&Counts::device_waits);
    check(machine().wait_for_device(device));
  }

  void record(void** event, const c10::Stream& stream, c10::DeviceIndex,
              c10::EventFlag) const override {
    if (*event == nullptr) *event = new Event;
    check(machine().record(*static_cast<Event*>(*event), stream_of(stream)));
  }
  void block(void* event, const c10::Stream& stream) const override {
    if (event != nullptr)
      check(machine().make_wait(stream_of(stream), *static_cast<Event*>(event)));
  }
  bool queryEvent(void* event) const override {
    return event == nullptr || is_done(machine().query(*static_cast<Event*>(event)));
  }
  void synchronizeEvent(void* event) const override {
    if (event != nullptr) check(machine().wait(*static_cast<Event*>(event)));
  }
  void destroyEvent(void* event, c10::DeviceIndex) const noexcept override {
    delete static_cast<Event*>(event);
  }
  void recordDataPtrOnStream(const c10::DataPtr& memory, const c10::Stream& stream) const override {
    record_stream(memory, stream);
  }

 private:
  static bool is_done(Status status) {
    if (status == Status::not_ready) return false;
    check(status);
    return true;
  }
};

C10_REGISTER_GUARD_IMPL(PrivateUse1, Guard);

}  // namespace

void check(Status status) {
  TORCH_CHECK(status == Status::ok, "a kernel of the simulated device has failed before this call");
}

c10::DeviceIndex current_device() { return device_of_thread; }

c10::Device with_index(c10::Device device) {
  return {kType, device.has_index() ? device.index() : device_of_thread};
}

c10::Stream current_stream_of(c10::DeviceIndex device) {
  return c10::Stream(c10::Stream::UNSAFE, c10::Device(kType, device), streams_of_thread[device]);
}

Stream& stream_of(const c10::Stream& stream) {
  if (stream.id() == 0) return machine().default_stream(stream.device_index());
  return *reinterpret_cast<Stream*>(stream.id());
}

std::shared_ptr<Event> record_event(Stream& stream) {
  auto event = std::make_shared<Event>();
  check(machine().record(*event, stream));
  return event;
}

}  // namespace linkboy::simulated_device

namespace linkboy::simulated_cuda {

c10::DeviceType device_type() { return simulated_device::kType; }

Stream& current_stream(c10::Device device) {
  return simulated_device::stream_of(
      simulated_device::current_stream_of(simulated_device::with_index(device).index()));
}

}  // namespace linkboy::simulated_cuda
